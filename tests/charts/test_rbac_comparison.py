"""The comparison of rights with calls decides as RBAC does, and notices every difference."""

from __future__ import annotations

from itertools import product
from random import Random

from emulator.support.kube_calls import Calls
from fleetbus_emulator.apiserver import Cluster, User
from support.api.rbac import (
    Call,
    Grant,
    Object,
    allows,
    calls_of_audit_event,
    differences,
    grants_of,
)

RBAC = "rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ACCOUNT = "system:serviceaccount:team:bot"
SUBJECTS: list[Object] = [
    {"kind": "User", "name": "ann"},
    {"kind": "Group", "name": "devs"},
    {"kind": "ServiceAccount", "name": "bot", "namespace": "team"},
]
PLURALS = {
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}


def role(kind: str, name: str, *rules: Object, namespace: str = "") -> Object:
    return {"kind": kind, "metadata": _meta(name, namespace), "rules": list(rules)}


def binding(kind: str, name: str, ref: tuple[str, str], *to: Object, namespace: str = "") -> Object:
    return {
        "kind": kind,
        "metadata": _meta(name, namespace),
        "roleRef": {"kind": ref[0], "name": ref[1], "apiGroup": RBAC.partition("/")[0]},
        "subjects": list(to),
    }


def _meta(name: str, namespace: str) -> Object:
    return {"name": name} | ({"namespace": namespace} if namespace else {})


def random_rule(random: Random, *, cluster_wide: bool) -> Object:
    if cluster_wide and random.random() < 0.2:
        return {"verbs": ["get"], "nonResourceURLs": [random.choice(["/metrics", "/logs/*"])]}
    names = {"resourceNames": ["web"]} if random.random() < 0.3 else {}
    return names | {
        "verbs": random.sample(["get", "list", "create", "*"], 2),
        "apiGroups": [random.choice(["", "apps", "*"])],
        "resources": random.sample(["pods", "pods/status", "*/status", "*", "deployments"], 2),
    }


def random_policy(random: Random) -> list[Object]:
    objects: list[Object] = []
    for number in range(5):
        in_namespace = random.random() < 0.6
        place = random.choice(["team", "shop"]) if in_namespace else ""
        of_namespace = in_namespace and random.random() < 0.5
        kind, name = "Role" if of_namespace else "ClusterRole", f"r{number}"
        rule = random_rule(random, cluster_wide=not of_namespace)
        objects.append(role(kind, name, rule, namespace=place if of_namespace else ""))
        to = random.choice(SUBJECTS)
        how = "RoleBinding" if in_namespace else "ClusterRoleBinding"
        objects.append(binding(how, name, (kind, name), to, namespace=place))
    return objects


def random_call(random: Random) -> Call:
    user, groups = random.choice([("ann", ()), ("bob", ("devs",)), (ACCOUNT, ("devs",))])
    if random.random() < 0.15:
        return Call(user, "get", path=random.choice(["/metrics", "/logs/a"]), groups=groups)
    return Call(
        user,
        random.choice(["get", "list", "create", "delete"]),
        random.choice(["", "apps"]),
        random.choice(["pods", "deployments"]),
        random.choice(["", "", "status"]),
        random.choice(["", "team", "shop"]),
        random.choice(["", "web", "other"]),
        groups=groups,
    )


def review(calls: Calls, call: Call) -> bool:
    where: Object = (
        {"nonResourceAttributes": {"verb": call.verb, "path": call.path}}
        if call.path
        else {
            "resourceAttributes": {
                "verb": call.verb,
                "group": call.group,
                "resource": call.resource,
                "subresource": call.subresource,
                "namespace": call.namespace,
                "name": call.name,
            }
        }
    )
    spec = {"user": call.user, "groups": list(call.groups), **where}
    reply = calls.call("POST", REVIEWS, {"spec": spec}, bearer="root")
    return bool(reply.document["status"]["allowed"])


def test_s7_the_comparison_decides_as_rbac_does():
    answers = {True: 0, False: 0}
    for seed in range(20):
        random = Random(seed)
        root = User("root", ("system:masters",))
        cluster = Cluster("hub", seed=1, tokens={"root": root}, authorize="rbac")
        for namespace in ("team", "shop"):
            cluster.create("v1/namespaces", {"metadata": {"name": namespace}})
        policy = random_policy(random)
        for obj in policy:
            place = obj["metadata"].get("namespace")
            cluster.create(f"{RBAC}/{PLURALS[obj['kind']]}", obj, place)
        grants, calls = grants_of(policy), Calls(cluster)
        for _ in range(60):
            call = random_call(random)
            decided = review(calls, call)
            assert allows(grants, call) == decided, (seed, str(call), policy)
            answers[decided] += 1
    assert min(answers.values()) > 100, "the vocabulary is too narrow to compare anything"


LIST = Call("ann", "list", "", "pods", namespace="team")
GRANTS = [
    Grant("ann", verb, "", "pods", namespace)
    for verb, namespace in product(["list", "watch"], ["team"])
]
WATCH = "ann: watch pods team/*"


def test_s7_what_is_missing_unused_or_explained_in_vain_is_reported():
    assert differences(GRANTS, [LIST], {WATCH: "the run is too short"}) == []
    assert differences(GRANTS, [LIST], {}) == [f"unused: {WATCH}"]
    elsewhere = Call("ann", "list", "", "pods")
    assert differences(GRANTS[:1], [LIST, elsewhere], {}) == ["missing: ann: list pods */*"]
    assert differences(GRANTS[:1], [LIST], {WATCH: "?"}) == [f"stale explanation: {WATCH}"]


def test_s7_questions_that_everybody_may_ask_need_no_grant():
    calls = [
        Call("ann", "get", path="/apis/apps/v1"),
        Call("ann", "create", "authorization.k8s.io", "selfsubjectaccessreviews"),
    ]
    assert differences([], calls, {}) == []
    assert differences([], [Call("ann", "get", path="/metrics")], {}) == [
        "missing: ann: get /metrics"
    ]


def test_s7_an_apply_that_created_asked_for_two_rights():
    event: Object = {
        "verb": "patch",
        "user": {"username": ACCOUNT, "groups": ["system:authenticated"]},
        "objectRef": {
            "resource": "deployments",
            "apiGroup": "apps",
            "namespace": "team",
            "name": "web",
        },
        "responseStatus": {"code": 201},
        "requestURI": "/apis/apps/v1/namespaces/team/deployments/web?fieldManager=x",
    }
    assert [str(call) for call in calls_of_audit_event(event)] == [
        f"{ACCOUNT}: patch deployments.apps team/web",
        f"{ACCOUNT}: create deployments.apps team/web",
    ]
    plain = {"verb": "get", "user": {"username": "ann"}, "requestURI": "/apis?timeout=32s"}
    assert [str(call) for call in calls_of_audit_event(plain)] == ["ann: get /apis"]
