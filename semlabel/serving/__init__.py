"""Online serving: HTTP and gRPC fronts, one engine process per device, the same labeler as the nightly run.

Importing this package is cheap; fastapi, grpc and torch are imported by the processes that need them.
"""
