//! Invalid headers and bodies.

use super::*;

/// Conditions and content types.
pub(super) fn heads(cases: &mut Cases<'_>) {
    let (post, put, delete) = (Method::POST, Method::PUT, Method::DELETE);
    cases
        .add("bad If-Match", put.clone(), WEB, 400, "Invalid", "If-Match")
        .gzip(one(&web("shop", "web", 1)))
        .header("if-match", "latest");
    cases
        .add(
            "bad If-Match",
            put.clone(),
            WEB,
            412,
            "PreconditionFailed",
            "does not exist",
        )
        .gzip(one(&web("shop", "web", 1)))
        .header("if-match", "\"7\"");
    cases
        .add("bad If-Match", put.clone(), WEB, 400, "Invalid", "together")
        .gzip(one(&web("shop", "web", 1)))
        .header("if-match", "7")
        .header("if-none-match", "*");
    cases
        .add(
            "bad If-Match",
            delete.clone(),
            "/v1alpha1/namespaces/shop",
            412,
            "PreconditionFailed",
            "changed",
        )
        .header("if-match", "1");

    cases
        .add(
            "wrong content type",
            put.clone(),
            WEB,
            415,
            "UnsupportedMediaType",
            "application/gzip",
        )
        .text("{}");
    cases.add(
        "wrong content type",
        put.clone(),
        WEB,
        415,
        "UnsupportedMediaType",
        "application/gzip",
    );
    cases
        .add(
            "wrong content type",
            post.clone(),
            NAMESPACES,
            415,
            "UnsupportedMediaType",
            "application/json",
        )
        .gzip(Vec::new());
}

/// JSON and archives.
pub(super) fn bodies(cases: &mut Cases<'_>) {
    let (post, put, delete) = (Method::POST, Method::PUT, Method::DELETE);
    cases
        .add("bad JSON", post.clone(), NAMESPACES, 400, "Invalid", "EOF")
        .text("");
    cases
        .add(
            "bad JSON",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "line 1",
        )
        .text("{\"metadata\": ");
    cases
        .add(
            "bad JSON",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "unknown field `speck`",
        )
        .json(json!({"metadata": {"name": "a"}, "speck": {}}));
    // As in namespace.kat: unknown fields, wrong values, and fields without an effect.
    for (spec, found) in [
        (json!({"isolated": true}), "unknown field `isolated`"),
        (json!({"quota": {"pods": 3}}), "`pods` is no quota"),
        (json!({"quota": {"workloads": -3}}), "spec.quota: "),
        (
            json!({"defaults": {"requests": {"storage": "1Gi"}}}),
            "unknown field `storage`",
        ),
        (json!({"isolation": 7}), "expected value"),
        (json!({"isolation": "Nobody"}), "unknown variant `Nobody`"),
        (
            json!({"ingressHosts": ["a b"]}),
            "spec.ingressHosts: `a b` is not a host name",
        ),
        (
            json!(7),
            "spec: invalid type: integer `7`, expected an object",
        ),
        (
            json!([]),
            "spec: invalid type: sequence, expected an object",
        ),
        (
            json!(["Shared"]),
            "spec: invalid type: sequence, expected an object",
        ),
    ] {
        cases
            .add("bad JSON", post.clone(), NAMESPACES, 400, "Invalid", found)
            .json(json!({"metadata": {"name": "a"}, "spec": spec}));
    }
    cases
        .add("bad JSON", post.clone(), NAMESPACES, 400, "Invalid", "name")
        .json(json!({"metadata": {}}));
    cases
        .add(
            "bad JSON",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "invalid type",
        )
        .json(json!({"metadata": {"name": 7}}));
    cases
        .add("bad JSON", post.clone(), NAMESPACES, 400, "Invalid", "")
        .text(&"[".repeat(10_000));
    cases
        .add(
            "bad name",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "lower-case",
        )
        .json(json!({"metadata": {"name": "Shop"}}));
    cases
        .add(
            "bad name",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "reserved",
        )
        .json(json!({"metadata": {"name": "node"}}));
    cases
        .add("bad name", post.clone(), NAMESPACES, 400, "Invalid", "")
        .json(json!({"metadata": {"name": "../etc"}}));
    cases
        .add(
            "bad kind",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "expected `Namespace`",
        )
        .json(json!({"kind": "Workload", "metadata": {"name": "a"}}));
    cases
        .add(
            "bad version",
            post.clone(),
            NAMESPACES,
            400,
            "Invalid",
            "apiVersion",
        )
        .json(json!({"apiVersion": "v1", "metadata": {"name": "a"}}));
    cases
        .add(
            "bad scope",
            post.clone(),
            TOKENS,
            400,
            "Invalid",
            "unknown variant",
        )
        .json(json!({"scope": {"kind": "root"}}));
    cases
        .add(
            "bad scope",
            post.clone(),
            TOKENS,
            404,
            "NotFound",
            "namespace",
        )
        .json(json!({"scope": {"kind": "deploy", "namespace": "none"}}));

    cases
        .add(
            "oversize",
            post.clone(),
            NAMESPACES,
            413,
            "TooLarge",
            "65536",
        )
        .text(&" ".repeat(65_537));
    cases
        .add("oversize", put.clone(), WEB, 413, "TooLarge", "1048576")
        .gzip(vec![0; 1_048_577]);
    let bomb = archive(&[("workload.kat", &"#".repeat(64 << 20))]);
    cases
        .add("oversize", put.clone(), WEB, 413, "TooLarge", "")
        .gzip(bomb);

    cases
        .add("bad gzip", put.clone(), WEB, 400, "Invalid", "")
        .gzip(Vec::new());
    cases
        .add("bad gzip", put.clone(), WEB, 400, "Invalid", "")
        .gzip(b"not a gzip".to_vec());
    let mut cut = one(&web("shop", "web", 1));
    cut.truncate(cut.len() / 2);
    cases
        .add("bad gzip", put.clone(), WEB, 400, "Invalid", "")
        .gzip(cut);
    cases
        .add(
            "bad archive",
            put.clone(),
            WEB,
            400,
            "Invalid",
            "no *.kat file",
        )
        .gzip(archive(&[]));
    cases
        .add(
            "bad file",
            put.clone(),
            WEB,
            400,
            "Invalid",
            "workload.kat:",
        )
        .gzip(one(&web("shop", "web", 1).replace("Always", "Often")));
    cases
        .add("bad file", put.clone(), WEB, 400, "Invalid", "(and 1 more)")
        .gzip(one(&web("shop", "web", 1)
            .replace("replicas", "replcas")
            .replace("Always", "Often")));
    cases
        .add(
            "other namespace",
            put.clone(),
            WEB,
            400,
            "Invalid",
            "namespace `default`",
        )
        .gzip(one(&web("default", "web", 1)));
    cases
        .add(
            "other namespace",
            post.clone(),
            SHOP,
            400,
            "Invalid",
            "namespace `default`",
        )
        .gzip(one(&web("default", "web", 1)));
    cases
        .add("other name", put.clone(), WEB, 400, "Invalid", "name `db`")
        .gzip(one(&web("shop", "db", 1)));
    cases.add(
        "protected",
        delete.clone(),
        "/v1alpha1/namespaces/default",
        403,
        "Forbidden",
        "default",
    );
}
