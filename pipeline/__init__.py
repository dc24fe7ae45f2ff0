"""The code location: assembly of assets, checks, jobs, schedules and sensors. No logic of the recipe lives here."""
