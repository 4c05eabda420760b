"""OpenTelemetry's SDK as the standard `OTEL_*` variables set it up, for the traces of a program of ours.

The SDK reads most of them itself: sampler, batches, limits, endpoint, headers, resource attributes.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points, version
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

SERVICE = "moonfold-handoff"
PROTOCOLS = {"": "otlp_proto_http", "http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""Exporter for each value of `OTEL_EXPORTER_OTLP_PROTOCOL`."""


class NoExporterError(Exception):
    """The exporter that is asked for is not there; the message says which."""


def set_up(names: tuple[str, ...]) -> None:
    """Export the spans of this process to all that `names` call for, in batches, and the last at its end.

    Raises:
        NoExporterError: there is none of that name or protocol.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    exporters = [_exporter(name) for name in names]
    ours = Resource.create({"service.name": SERVICE, "service.version": version(SERVICE)})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def _exporter(name: str) -> Any:
    if name == "otlp":
        protocol = (
            os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            or ""
        )
        name = PROTOCOLS.get(protocol.strip(), protocol)
    found = entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        raise NoExporterError(f"no exporter {name!r} is installed")
    return next(iter(found)).load()()
