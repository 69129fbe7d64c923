//! Unknown routes, objects, methods, queries and paths.

use super::*;

/// Routes, queries and paths.
pub(super) fn ways(cases: &mut Cases<'_>) {
    let (get, put, delete) = (Method::GET, Method::PUT, Method::DELETE);
    cases.add(
        "unknown route",
        get.clone(),
        "/",
        404,
        "NotFound",
        "no route",
    );
    cases
        .add(
            "unknown route",
            get.clone(),
            "/v1/namespaces",
            404,
            "NotFound",
            "no route",
        )
        .token("");
    cases.add(
        "unknown route",
        get.clone(),
        "/v1alpha1/namespaces/",
        404,
        "NotFound",
        "no route",
    );
    cases.add(
        "unknown route",
        get.clone(),
        "/v1alpha1/n/shop/workloads/web/files/../../../../tokens",
        404,
        "NotFound",
        "",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/namespaces/none",
        404,
        "NotFound",
        "namespace `none`",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        WEB,
        404,
        "NotFound",
        "workload `shop/web`",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/n/none/workloads",
        404,
        "NotFound",
        "namespace `none`",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/n/shop/instances/web-abcde",
        404,
        "NotFound",
        "instance",
    );
    cases.add(
        "unknown thing",
        get.clone(),
        "/v1alpha1/nodes/none",
        404,
        "NotFound",
        "node `none`",
    );
    cases.add(
        "unknown thing",
        delete.clone(),
        "/v1alpha1/tokens/none",
        404,
        "NotFound",
        "token",
    );
    cases
        .add(
            "unknown thing",
            put.clone(),
            "/v1alpha1/n/none/workloads/web",
            404,
            "NotFound",
            "namespace `none`",
        )
        .gzip(one(&web("none", "web", 1)));

    cases.add(
        "wrong method",
        Method::PATCH,
        NAMESPACES,
        405,
        "MethodNotAllowed",
        "PATCH",
    );
    cases.add(
        "wrong method",
        delete.clone(),
        NAMESPACES,
        405,
        "MethodNotAllowed",
        "DELETE",
    );
    cases
        .add(
            "wrong method",
            put.clone(),
            "/version",
            405,
            "MethodNotAllowed",
            "PUT",
        )
        .token("");
    cases
        .add(
            "wrong method",
            Method::TRACE,
            "/version",
            405,
            "MethodNotAllowed",
            "TRACE",
        )
        .token("");

    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watsch=true",
        400,
        "Invalid",
        "watsch",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watch=perhaps",
        400,
        "Invalid",
        "query",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watch=true&resourceVersion=new",
        400,
        "Invalid",
        "resourceVersion",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/v1alpha1/namespaces?watch=true&resourceVersion=-1",
        400,
        "Invalid",
        "resourceVersion",
    );
    cases.add(
        "bad query",
        get.clone(),
        "/metrics?format=xml",
        400,
        "Invalid",
        "prometheus",
    );
    cases.add(
        "bad query",
        delete.clone(),
        "/v1alpha1/namespaces/shop?dryrun=true",
        400,
        "Invalid",
        "dryrun",
    );
    cases.add(
        "bad path",
        get.clone(),
        "/v1alpha1/namespaces/%ff",
        400,
        "Invalid",
        "path",
    );
}
