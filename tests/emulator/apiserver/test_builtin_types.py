"""Peculiarities of single built-in types: versions, allocations, defaults, streams."""

from typing import Any

import orjson
import pytest

from emulator.support.kube_calls import MERGE, PODS, Calls, events
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.apiserver.types.services import NODE_PORTS

V1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
V2 = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
SERVICES = "/api/v1/namespaces/default/services"
WEB = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
METRICS = "autoscaling.alpha.kubernetes.io/metrics"


@pytest.fixture
def calls() -> Calls:
    return Calls(Cluster("alpha", seed=1))


def cpu(percent: int) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def autoscaler(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "web"}, "spec": {"scaleTargetRef": WEB, "maxReplicas": 5, **spec}}


def service(name: str = "web", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


# autoscalers in two versions ----------------------------------------------------------------------


def test_an_autoscaler_of_version_1_is_one_of_version_2_with_a_cpu_metric(calls: Calls):
    created = calls.post(V1, autoscaler(targetCPUUtilizationPercentage=70))
    assert created.status == 201
    assert created.document["apiVersion"] == "autoscaling/v1"
    assert created.document["spec"]["targetCPUUtilizationPercentage"] == 70
    newer = calls.get(f"{V2}/web").document
    assert newer["spec"]["metrics"] == [cpu(70)]
    assert newer["spec"]["minReplicas"] == 1
    assert "targetCPUUtilizationPercentage" not in newer["spec"]


def test_what_version_1_cannot_say_travels_in_annotations(calls: Calls):
    pods = {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue"}}}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    calls.post(V2, autoscaler(metrics=[pods, cpu(60)], behavior=behavior))
    older = calls.get(f"{V1}/web").document
    assert older["spec"].keys() == {
        *("scaleTargetRef", "minReplicas", "maxReplicas", "targetCPUUtilizationPercentage")
    }
    assert orjson.loads(older["metadata"]["annotations"][METRICS]) == [pods]
    older["spec"]["maxReplicas"] = 9
    assert calls.put(f"{V1}/web", older).status == 200
    newer = calls.get(f"{V2}/web").document
    assert newer["spec"]["maxReplicas"] == 9
    assert newer["spec"]["metrics"] == [cpu(60), pods]
    assert newer["spec"]["behavior"] == behavior
    assert "annotations" not in newer["metadata"]


def test_a_patch_is_of_the_version_it_is_sent_to(calls: Calls):
    calls.post(V2, autoscaler(metrics=[cpu(60)]))
    calls.merge(f"{V1}/web", {"spec": {"targetCPUUtilizationPercentage": 50}})
    assert calls.get(f"{V2}/web").document["spec"]["metrics"] == [cpu(50)]
    applied = {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler"}
    body = {**applied, **autoscaler(targetCPUUtilizationPercentage=40)}
    assert calls.apply(f"{V1}/web", body, "m", force="1").status == 200
    assert calls.get(f"{V2}/web").document["spec"]["metrics"] == [cpu(40)]


def test_the_status_of_an_autoscaler_is_converted_and_watched(calls: Calls):
    calls.post(V2, autoscaler())
    watch = calls.watch(V1)
    current = {"name": "cpu", "current": {"averageUtilization": 33}}
    conditions = [{"type": "AbleToScale", "status": "True"}]
    status = {"currentMetrics": [{"type": "Resource", "resource": current}]}
    path = f"{V2}/web/status"
    calls.merge(path, {"status": {**status, "currentReplicas": 2, "conditions": conditions}})
    autoscaler_v1 = events(watch)[-1]["object"]
    assert autoscaler_v1["status"]["currentCPUUtilizationPercentage"] == 33
    assert "autoscaling.alpha.kubernetes.io/conditions" in autoscaler_v1["metadata"]["annotations"]
    put = calls.put(f"{V1}/web/status", autoscaler_v1)
    assert put.status == 200
    newer = calls.get(f"{V2}/web").document["status"]
    assert newer["conditions"] == conditions
    assert newer["currentMetrics"][0]["resource"]["current"] == {"averageUtilization": 33}


def test_malformed_autoscalers_of_version_1_are_refused(calls: Calls):
    malformed: list[Any] = [[], "x", {"metrics": "x"}, {"targetCPUUtilizationPercentage": "x"}]
    for wrong in malformed:
        body = {"metadata": {"name": "a"}, "spec": wrong}
        assert calls.post(V1, body).status == 400
    broken = {**autoscaler(), "metadata": {"name": "b", "annotations": {METRICS: "no json"}}}
    assert calls.post(V1, broken).document["spec"]["targetCPUUtilizationPercentage"] == 80


# services -----------------------------------------------------------------------------------------


def test_a_service_is_given_an_address_and_node_ports_if_its_type_has_them(calls: Calls):
    plain = calls.post(SERVICES, service()).document["spec"]
    assert plain["clusterIPs"] == [plain["clusterIP"]]
    assert plain["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    outside = calls.post(SERVICES, service("out", type="NodePort")).document["spec"]
    assert outside["ports"][0]["nodePort"] in NODE_PORTS
    assert outside["externalTrafficPolicy"] == "Cluster"
    balanced = calls.post(SERVICES, service("lb", type="LoadBalancer")).document["spec"]
    assert balanced["allocateLoadBalancerNodePorts"] is True
    ports = [{"port": 80, "nodePort": 30080}]
    chosen = calls.post(SERVICES, service("own", type="NodePort", ports=ports)).document["spec"]
    assert chosen["ports"][0]["nodePort"] == 30080


def test_a_headless_service_and_an_external_name_have_no_address(calls: Calls):
    headless = calls.post(SERVICES, service(clusterIP="None")).document["spec"]
    assert (headless["clusterIP"], headless["clusterIPs"]) == ("None", ["None"])
    elsewhere = {"type": "ExternalName", "externalName": "a.example.com"}
    named = calls.post(SERVICES, service("e", **elsewhere)).document["spec"]
    assert "clusterIP" not in named


def test_a_change_of_type_brings_node_ports_and_takes_them_away(calls: Calls):
    created = calls.post(SERVICES, service()).document
    path = f"{SERVICES}/web"
    outside = calls.merge(path, {"spec": {"type": "NodePort"}}).document["spec"]
    assert outside["ports"][0]["nodePort"] in NODE_PORTS
    assert outside["clusterIP"] == created["spec"]["clusterIP"]
    spec = calls.put(path, service(type="NodePort")).document["spec"]
    assert spec["ports"] == outside["ports"]
    back = calls.merge(path, {"spec": {"type": "ClusterIP"}}).document["spec"]
    assert "nodePort" not in back["ports"][0]
    assert "externalTrafficPolicy" not in back
    change = {"spec": {"type": "ExternalName", "externalName": "a.example.com"}}
    assert "clusterIP" not in calls.merge(path, change).document["spec"]


def test_node_ports_are_given_once(calls: Calls):
    ports = [
        calls.post(SERVICES, service(f"s{n}", type="NodePort")).document["spec"]["ports"][0]
        for n in range(100)
    ]
    assert len({port["nodePort"] for port in ports}) == 100


# others -------------------------------------------------------------------------------------------


def test_a_limit_range_implies_defaults_from_its_bounds(calls: Calls):
    item = {"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "memory": "1Mi"}}
    body = {"metadata": {"name": "l"}, "spec": {"limits": [item, {"type": "Pod"}]}}
    path = "/api/v1/namespaces/default/limitranges"
    first, second = calls.post(path, body).document["spec"]["limits"]
    assert first["default"] == {"cpu": "2"}
    assert first["defaultRequest"] == {"cpu": "2", "memory": "1Mi"}
    assert second == {"type": "Pod"}


def test_a_replication_controller_selects_the_pods_of_its_template(calls: Calls):
    pod = {"containers": [{"name": "c", "image": "i"}]}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod}
    body = {"metadata": {"name": "rc"}, "spec": {"template": template}}
    path = "/api/v1/namespaces/default/replicationcontrollers"
    assert calls.post(path, body).document["spec"]["selector"] == {"app": "web"}


@pytest.mark.parametrize("stream", ["exec", "attach", "portforward"])
def test_streams_into_simulated_pods_are_refused_with_the_reason(calls: Calls, stream: str):
    spec = {"containers": [{"name": "c", "image": "i"}]}
    calls.post(PODS, {"metadata": {"name": "p"}, "spec": spec})
    reply = calls.post(f"{PODS}/p/{stream}", None)
    assert (reply.status, reply.document["reason"]) == (501, "NotImplemented")
    assert "simulated" in reply.message
    assert calls.get(f"{PODS}/none/{stream}").status == 404


def test_an_event_may_be_patched_in_either_group(calls: Calls):
    involved = {"kind": "Pod", "name": "p", "namespace": "default"}
    calls.post(
        "/api/v1/namespaces/default/events",
        {"metadata": {"name": "e"}, "involvedObject": involved, "message": "old"},
    )
    path = "/apis/events.k8s.io/v1/namespaces/default/events/e"
    reply = calls.call("PATCH", path, {"note": "new"}, content=MERGE)
    assert (reply.status, reply.document["note"]) == (200, "new")
    assert calls.get("/api/v1/namespaces/default/events/e").document["message"] == "new"


# logs ---------------------------------------------------------------------------------------------


def logged(calls: Calls, *containers: str, **status: Any) -> str:
    """Let there be a pod on a node; returns the path of its log."""
    spec = {"nodeName": "n", "containers": [{"name": c, "image": "i"} for c in containers]}
    calls.post(PODS, {"metadata": {"name": "p"}, "spec": spec})
    calls.merge(f"{PODS}/p/status", {"status": {"phase": "Running", **status}})
    return f"{PODS}/p/log"


def test_a_log_tells_that_the_pod_is_simulated(calls: Calls):
    running = {"running": {"startedAt": "2025-01-01T00:00:00Z"}}
    path = logged(calls, "a", containerStatuses=[{"name": "a", "state": running}])
    assert calls.get(path).document == "p is simulated; phase Running\n"
    assert calls.get(path, timestamps="true").document.startswith("2025-01-01T00:00:00Z p is")
    assert calls.get(path, tailLines="0").document == ""
    assert calls.get(path, limitBytes="4").document == "p is"


def test_a_log_needs_a_container_that_has_started(calls: Calls):
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    path = logged(calls, "a", "b", containerStatuses=[{"name": "a", "state": waiting}])
    unnamed = calls.get(path).message
    assert unnamed == "a container name must be specified for pod p, choose one of: [a b]"
    assert calls.get(path, container="c").message == "container c is not valid for pod p"
    early = calls.get(path, container="a").message
    assert early == 'container "a" in pod "p" is waiting to start: ContainerCreating'
    never = calls.get(path, container="b", previous="1").message
    assert never == 'previous terminated container "b" in pod "p" not found'


def test_a_container_that_ended_has_a_previous_log(calls: Calls):
    ended = {"terminated": {"exitCode": 1, "startedAt": "2025-01-01T00:00:00Z"}}
    path = logged(calls, "a", containerStatuses=[{"name": "a", "state": {}, "lastState": ended}])
    log = calls.get(path, previous="1", timestamps="1").document
    assert log == "2025-01-01T00:00:00Z p is simulated; phase Failed\n"
