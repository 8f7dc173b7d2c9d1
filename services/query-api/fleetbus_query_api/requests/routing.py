"""Routes are analysed once, when their module is imported; each application has its own components.

FastAPI needs a tenth of a second for the parameters and models of all routes, and again as much for
routers that are included. `FastAPI(routes=...)` takes routes as they are.
"""

from __future__ import annotations

from typing import TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request

from fleetbus_query_api.requests.parameters import refuse_repeats

_T = TypeVar("_T")


def fleet_router(tag: str) -> APIRouter:
    """A router below /fleet/v1.

    Args:
        tag: the section of its routes in the OpenAPI document.
    """
    return APIRouter(prefix="/fleet/v1", tags=[tag], dependencies=[Depends(refuse_repeats)])


def add_components(app: FastAPI, *components: object) -> None:
    """Give an application what its routes answer with; one of each class."""
    app.state.components = {type(component): component for component in components}


def component(request: Request, kind: type[_T]) -> _T:
    """The component of a class in the application that a request came to."""
    return request.app.state.components[kind]
