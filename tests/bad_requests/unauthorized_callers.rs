//! Unknown callers, and callers without the permission for their request.

use super::*;

/// Tokens and scopes.
pub(super) fn callers(cases: &mut Cases<'_>) {
    let (get, post, put) = (Method::GET, Method::POST, Method::PUT);
    let server = cases.server;
    let wrong = {
        let mut text = server.admin.clone().into_bytes();
        text[20] = if text[20] == b'A' { b'B' } else { b'A' };
        String::from_utf8(text).unwrap()
    };

    cases
        .add(
            "no token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "who calls",
        )
        .token("");
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "not known",
        )
        .token(wrong.clone());
    cases
        .add(
            "wrong token",
            get.clone(),
            "/version",
            401,
            "Unauthorized",
            "not known",
        )
        .token(wrong);
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "form",
        )
        .token("kat1.x.y");
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "form",
        )
        .token("x".repeat(5000));
    let join = format!("{}.{}", server.admin, "ab".repeat(32));
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "form",
        )
        .token(join);
    cases
        .add(
            "wrong token",
            get.clone(),
            NAMESPACES,
            401,
            "Unauthorized",
            "Bearer",
        )
        .token("")
        .header("authorization", "Basic YTpi");

    cases
        .add(
            "wrong scope",
            get.clone(),
            TOKENS,
            403,
            "Forbidden",
            "admin",
        )
        .token(&server.read);
    cases
        .add(
            "wrong scope",
            post.clone(),
            NAMESPACES,
            403,
            "Forbidden",
            "admin",
        )
        .token(&server.deploy)
        .json(json!({"metadata": {"name": "mine"}}));
    cases
        .add("wrong scope", put.clone(), WEB, 403, "Forbidden", "deploy")
        .token(&server.read)
        .gzip(one(&web("shop", "web", 1)));
    cases
        .add(
            "wrong scope",
            put.clone(),
            "/v1alpha1/n/default/workloads/web",
            403,
            "Forbidden",
            "deploy",
        )
        .token(&server.deploy)
        .gzip(one(&web("default", "web", 1)));
    cases
        .add(
            "wrong scope",
            get.clone(),
            "/v1alpha1/workloads",
            403,
            "Forbidden",
            "read",
        )
        .token(&server.deploy);
    cases
        .add(
            "wrong scope",
            get.clone(),
            "/v1alpha1/events",
            403,
            "Forbidden",
            "namespace",
        )
        .token(&server.deploy);
    cases
        .add(
            "wrong scope",
            get.clone(),
            "/v1alpha1/events?namespace=shop&namespace=default",
            403,
            "Forbidden",
            "namespace",
        )
        .token(&server.deploy);
    cases
        .add(
            "wrong scope",
            post.clone(),
            STATUS,
            403,
            "Forbidden",
            "certificate",
        )
        .json(json!({"nodeName": "n1", "nodeUID": NODE_UID}));
}
