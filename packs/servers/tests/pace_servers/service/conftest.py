"""The service that the core's tests ask, for those of this pack."""

from tests.api.conftest import postgresql, postgresql_service, service, shared_service, sqlite_service

__all__ = ["postgresql", "postgresql_service", "service", "shared_service", "sqlite_service"]
