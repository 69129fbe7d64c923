//! Fields that have no effect yet: what they hold, and what their rules refuse.

use super::*;
use kat_types::resource::{Bytes, MilliCpu};

fn at(kind: DocumentKind, spec: Value) -> Value {
    let mut document = least(kind);
    for (name, value) in spec.as_object().unwrap() {
        document["spec"][name] = value.clone();
    }
    document
}

fn files_of(kind: DocumentKind, spec: Value) -> Vec<SourceFile> {
    let document = at(kind, spec);
    let mut files = vec![file(kind.file(), &document)];
    match kind {
        DocumentKind::VirtualLoadBalancer => files.push(file("workload.kat", &workload())),
        DocumentKind::JobDefinition => {
            let mut job = workload();
            job["spec"]["type"] = json!("Job");
            job["spec"]["restartPolicy"] = json!("Never");
            files.push(file("workload.kat", &job));
        }
        _ => {}
    }
    files
}

/// The mistakes as `path: message`, or those of `not_yet`.
fn said(kind: DocumentKind, spec: Value) -> String {
    let found = match kind {
        DocumentKind::ClusterConfiguration => {
            let text = at(kind, spec).to_string();
            match parse_cluster(&text, "cluster.kat") {
                Ok(_) => not_yet_cluster(&text, "cluster.kat"),
                Err(found) => found,
            }
        }
        _ => match parse(&files_of(kind, spec), DecodeMode::Strict) {
            Ok(bundle) => not_yet(&bundle),
            Err(found) => found,
        },
    };
    let lines = found
        .iter()
        .map(|found| format!("{}: {}", found.path, found.message));
    lines.collect::<Vec<_>>().join("\n")
}

fn route(fields: Value) -> Value {
    let mut route = json!({"host": "web.example.org"});
    for (name, value) in fields.as_object().unwrap() {
        route[name] = value.clone();
    }
    json!({"ports": [{"name": "web", "containerPort": 8080}], "ingress": [route]})
}

#[test]
fn a_route_has_exactly_one_target() {
    let of = |fields: Value| said(DocumentKind::VirtualLoadBalancer, route(fields));
    for target in [
        json!({"servicePort": 8080}),
        json!({"servicePortName": "web"}),
        json!({"redirectTo": "https://example.com"}),
        json!({"maintenance": true}),
        json!({"servicePort": 8080, "maintenance": false}),
    ] {
        assert_eq!(of(target.clone()), "", "{target}");
    }
    assert_eq!(
        of(json!({})),
        "spec.ingress[0].servicePortName: found no target, expected exactly one of servicePort, servicePortName, redirectTo, maintenance"
    );
    assert_eq!(
        of(json!({"servicePort": 8080, "redirectTo": "https://example.com"})),
        "spec.ingress[0].redirectTo: found servicePort and redirectTo, expected exactly one of them"
    );
    assert_eq!(
        of(json!({"servicePort": 9090})),
        "spec.ingress[0].servicePort: no port of spec.ports is `9090`"
    );
}

#[test]
fn fields_of_a_route_that_do_not_fit_together_are_refused() {
    let of = |fields: Value| {
        let mut whole = json!({"servicePort": 8080});
        for (name, value) in fields.as_object().unwrap() {
            whole[name] = value.clone();
        }
        said(DocumentKind::VirtualLoadBalancer, route(whole))
    };
    for (fields, expected) in [
        (
            json!({"passthrough": true, "stripPrefix": true}),
            "spec.ingress[0].stripPrefix: stripPrefix can't be used with passthrough, which does not end TLS",
        ),
        (
            json!({"plainHTTP": "redirect"}),
            "spec.ingress[0].plainHTTP: plainHTTP redirect sends clients to https, which needs tls",
        ),
        (
            json!({"stripPrefix": true}),
            "spec.ingress[0].stripPrefix: stripPrefix needs a path other than /",
        ),
        (
            json!({"redirectFrom": ["web.example.org"]}),
            "spec.ingress[0].redirectFrom: item 1 is the route's own host `web.example.org`",
        ),
        (
            json!({"tls": {"issuer": "acme", "secret": "web"}}),
            "spec.ingress[0].tls.secret: found both issuer and secret, expected exactly one of them",
        ),
        (
            json!({"tls": {}}),
            "spec.ingress[0].tls: found neither issuer nor secret, expected exactly one of them",
        ),
        (
            json!({"tls": "acme"}),
            "spec.ingress[0].tls: found the text `acme`, expected true or false",
        ),
        (
            json!({"allowSources": ["192.0.2.1/24"]}),
            "spec.ingress[0].allowSources[0]: `192.0.2.1/24` has bits set after its prefix",
        ),
        (
            json!({"passthrough": true, "tls": true}),
            "spec.ingress[0].tls: tls can't be used with passthrough, which does not end TLS",
        ),
        (
            json!({"requestHeaders": {"set": {"X-Forwarded-For": "192.0.2.1"}}}),
            "spec.ingress[0].requestHeaders.set.X-Forwarded-For: `X-Forwarded-For` says who the caller is, and the ingress sets it itself",
        ),
        (
            json!({"responseHeaders": {"remove": ["Content-Length"]}}),
            "spec.ingress[0].responseHeaders.remove[0]: `Content-Length` belongs to the connection, and can't be changed",
        ),
    ] {
        assert_eq!(of(fields.clone()), expected, "{fields}");
    }
    let whole =
        json!({"passthrough": true, "allowSources": ["192.0.2.0/24"], "proxyProtocol": "v2"});
    assert_eq!(of(whole), "");
    let nested = json!({"forwardAuth": {"workload": "crew/a/b", "port": 80}});
    assert!(of(nested).contains("spec.ingress[0].forwardAuth.workload"));
    let asked = json!({"forwardAuth": {"workload": "crew/auth", "port": "web", "path": "/verify"}});
    assert_eq!(of(asked), "");
    let tls = json!({"tls": true, "plainHTTP": "redirect", "path": "/a", "stripPrefix": true});
    assert_eq!(of(tls), "");
}

/// `kat-ingress` answers the path of a route that it refuses with an error, so that what it refuses is
/// refused here: `ParsedChanges::parse`, `prefix_segments` and `Route::parse`.
#[test]
fn what_kat_ingress_would_refuse_is_refused_before() {
    let of = |fields: Value| {
        let mut whole = json!({"maintenance": true});
        for (name, value) in fields.as_object().unwrap() {
            whole[name] = value.clone();
        }
        said(DocumentKind::VirtualLoadBalancer, route(whole))
    };
    for name in [
        "Connection",
        "Content-Length",
        "Host",
        "HTTP2-Settings",
        "Keep-Alive",
        "Proxy-Authenticate",
        "Proxy-Authorization",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
        "Forwarded",
        "X-Real-IP",
        "X_Real_IP",
        "X-Forwarded-For",
        "x_forwarded_for",
        "X_Forwarded-Prefix",
    ] {
        for field in ["requestHeaders", "responseHeaders"] {
            let removed = of(json!({field: {"remove": [name]}}));
            assert_ne!(removed, "", "{field} {name}");
            let set = of(json!({field: {"set": {name: "x"}}}));
            assert_ne!(set, "", "{field} {name}");
        }
    }
    for letter in "%?#;\\\"<>^`{|}".chars() {
        let path = format!("/a{letter}b");
        assert_ne!(of(json!({"path": path})), "", "{path}");
    }
    for letter in "?#\\\"<>^`{|}".chars() {
        let route = json!({"host": "a.lan", "redirectTo": format!("https://b.lan/{letter}")});
        let balancer = json!({"ports": [{"containerPort": 80}], "ingress": [route]});
        let found = said(DocumentKind::VirtualLoadBalancer, balancer);
        assert!(found.contains("redirectTo"), "{letter} {found}");
    }
    assert_eq!(
        of(json!({"redirectFrom": ["*.example.org"]})),
        "spec.ingress[0].redirectFrom[0]: `*.example.org` stands for many hosts, expected one such as `www.example.org`"
    );
    assert_eq!(
        of(json!({"host": "*.lan", "redirectFrom": ["www.example.org"]})),
        "spec.ingress[0].redirectFrom: redirectFrom needs one host to redirect to, and `*.lan` stands for many"
    );
    let twice = json!({
        "ports": [{"containerPort": 80}],
        "ingress": [
            {"host": "a.lan", "path": "/x", "servicePort": 80},
            {"host": "a.lan", "path": "/x/", "servicePort": 80},
        ],
    });
    let found = said(DocumentKind::VirtualLoadBalancer, twice);
    assert!(found.contains("is written twice"), "{found}");
    let whole = json!({
        "path": "/a-b_c.d~e!$&'()*+,=:@",
        "requestHeaders": {"set": {"X-Tenant": "a"}, "remove": ["Cookie", "Authorization"]},
        "responseHeaders": {"remove": ["Server"]},
        "redirectFrom": ["www.example.org"],
    });
    assert_eq!(of(whole), "");
}

#[test]
fn a_route_leads_to_a_port_with_tcp_and_a_workload_has_a_bounded_number_of_them() {
    let of = |spec: Value| said(DocumentKind::VirtualLoadBalancer, spec);
    let udp = json!({
        "ports": [{"containerPort": 53, "protocol": "UDP"}],
        "ingress": [{"host": "dns.lan", "servicePort": 53}],
    });
    assert_eq!(
        of(udp),
        "spec.ingress[0].servicePort: the port has protocol UDP, and HTTP needs TCP"
    );
    let both = json!({
        "ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}],
        "ingress": [{"host": "dns.lan", "servicePort": 53}],
    });
    assert_eq!(of(both), "");
    let route = |number: u32| json!({"host": format!("h{number}.lan"), "servicePort": 80});
    let many = |count: u32| {
        let routes: Vec<_> = (0..count).map(route).collect();
        of(json!({"ports": [{"containerPort": 80}], "ingress": routes}))
    };
    assert_eq!(many(64), "");
    assert_eq!(
        many(65),
        "spec.ingress: found 65 routes, expected at most 64"
    );
}

#[test]
fn settings_of_host_ports_need_a_host_port() {
    let of = |port: Value| said(DocumentKind::VirtualLoadBalancer, json!({"ports": [port]}));
    let port = json!({"containerPort": 80, "hostPortOn": "ingress", "allowSources": ["192.0.2.1"]});
    let found = of(port);
    assert_eq!(found.lines().count(), 2, "{found}");
    for name in ["hostPortOn", "allowSources"] {
        let expected = format!("spec.ports[0].{name}: {name} is used only with hostPort");
        assert!(found.contains(&expected), "{expected} is not in {found}");
    }
    for host_port in [json!(80), json!("auto")] {
        let port = json!({"containerPort": 80, "hostPort": host_port, "hostPortOn": "ingress"});
        assert_eq!(of(port), "");
    }
    let unknown = json!({"containerPort": 80, "hostPort": 80, "hostPortOn": "machines"});
    let found = of(unknown);
    assert!(found.starts_with("spec.ports[0].hostPortOn: "), "{found}");
    let usual =
        json!({"containerPort": 80, "hostPort": 80, "hostPortOn": "instances", "allowSources": []});
    assert_eq!(of(usual), "");
}

#[test]
fn a_host_port_is_for_a_bounded_number_of_addresses_and_ranges() {
    let of = |sources: Value| {
        let port = json!({"containerPort": 80, "hostPort": 80, "allowSources": sources});
        said(DocumentKind::VirtualLoadBalancer, json!({"ports": [port]}))
    };
    assert_eq!(
        of(json!(["192.0.2.1", "192.0.2.0/24", "2001:db8::/32"])),
        ""
    );
    for (sources, expected) in [
        (
            json!(["192.0.2.1/24"]),
            "spec.ports[0].allowSources[0]: `192.0.2.1/24` has bits set after its prefix",
        ),
        (
            json!(["192.0.2.1", "192.0.2.1"]),
            "spec.ports[0].allowSources[1]: `192.0.2.1` is written twice",
        ),
        (
            json!(["lan.example.org"]),
            "spec.ports[0].allowSources[0]: `lan.example.org` is not an address or a range",
        ),
    ] {
        let found = of(sources);
        assert!(found.starts_with(expected), "{expected} is not {found}");
    }
    let many = |count: u32| {
        let sources: Vec<_> = (0..count).map(|last| format!("192.0.2.{last}")).collect();
        of(json!(sources))
    };
    assert_eq!(many(64), "");
    assert_eq!(
        many(65),
        "spec.ports[0].allowSources: found 65 addresses and ranges, expected at most 64"
    );
    // Ports may be in the other file as well.
    let ports =
        json!([{"containerPort": 80, "hostPort": "auto", "allowSources": ["192.0.2.0/24"]}]);
    assert_eq!(said(DocumentKind::Workload, json!({"ports": ports})), "");
}

#[test]
fn a_workload_has_a_bounded_number_of_further_names() {
    let of = |aliases: Value| {
        said(
            DocumentKind::VirtualLoadBalancer,
            json!({"aliases": aliases}),
        )
    };
    assert_eq!(of(json!(["mysql", "db-1"])), "");
    for wrong in ["My_SQL", "db.shop", "", "-db", "*"] {
        assert_ne!(of(json!([wrong])), "", "{wrong}");
    }
    let many = |count: u32| {
        let names: Vec<_> = (0..count).map(|number| format!("name-{number}")).collect();
        of(json!(names))
    };
    assert_eq!(many(16), "");
    assert_eq!(
        many(17),
        "spec.aliases: found 17 names, expected at most 16"
    );
}

#[test]
fn the_own_name_is_refused_where_another_is_expected() {
    assert_eq!(
        said(
            DocumentKind::VirtualLoadBalancer,
            json!({"aliases": ["mysql", "base"]})
        ),
        "spec.aliases[1]: `base` is the name of the workload, expected a further name"
    );
    let after =
        |names: [&str; 2]| json!({"startAfter": names.map(|name| json!({"workload": name}))});
    assert_eq!(
        said(DocumentKind::Workload, after(["base", "db"])),
        "spec.startAfter[0].workload: `base` can't start after itself"
    );
    assert!(said(DocumentKind::Workload, after(["db", "db"])).contains("`db` is written twice"));
    assert_eq!(said(DocumentKind::Workload, after(["db", "cache"])), "");
    let many = |count: u32| {
        let names = (0..count).map(|number| json!({"workload": format!("w{number}")}));
        let all: Vec<_> = names.collect();
        said(DocumentKind::Workload, json!({"startAfter": all}))
    };
    assert_eq!(many(16), "");
    assert_eq!(
        many(17),
        "spec.startAfter: found 17 workloads, expected at most 16"
    );
}

#[test]
fn a_daemon_and_a_service_have_their_own_settings_of_updates() {
    let of = |kind: &str, rolling: Value| {
        let update = json!({"rolling": rolling});
        said(
            DocumentKind::Workload,
            json!({"type": kind, "updateStrategy": update}),
        )
    };
    assert_eq!(
        of("Service", json!({"maxUnavailable": 2})),
        "spec.updateStrategy.rolling.maxUnavailable: maxUnavailable is used only with type DaemonService"
    );
    for surge in [json!(2), json!("50%")] {
        assert_eq!(
            of("DaemonService", json!({"maxSurge": surge})),
            "spec.updateStrategy.rolling.maxSurge: a DaemonService has one instance on each machine, expected a maxSurge of 0 or 1"
        );
    }
    let daemon = of(
        "DaemonService",
        json!({"maxSurge": 0, "maxUnavailable": "25%"}),
    );
    assert_eq!(daemon, "");
    assert_eq!(of("Service", json!({"maxSurge": "50%"})), "");
}

#[test]
fn a_job_with_a_schedule_is_not_deleted_after_its_runs() {
    let of = |spec: Value| said(DocumentKind::JobDefinition, spec);
    assert_eq!(
        of(json!({"schedule": "@daily", "ttlSecondsAfterFinished": 60})),
        "spec.ttlSecondsAfterFinished: ttlSecondsAfterFinished is used only without schedule"
    );
    let found = of(json!({"completions": "PerMachine"}));
    assert!(
        found.contains("expected a whole number from 1 to 10000"),
        "{found}"
    );
    assert_eq!(of(json!({"completions": "PerNode", "catchUp": "All"})), "");
    assert_eq!(of(json!({"schedule": "@daily", "catchUp": "All"})), "");
}

#[test]
fn runs_of_a_job_that_has_something_for_itself_do_not_overlap() {
    let of = |change: &dyn Fn(&mut Value)| {
        let spec = json!({"schedule": "@daily", "concurrencyPolicy": "Allow"});
        let job = at(DocumentKind::JobDefinition, spec);
        let mut file_of_job = workload();
        let spec = &mut file_of_job["spec"];
        spec["type"] = json!("Job");
        spec["restartPolicy"] = json!("Never");
        spec.as_object_mut().unwrap().remove("replicas");
        change(spec);
        let files = [file("workload.kat", &file_of_job), file("job.kat", &job)];
        match parse(&files, DecodeMode::Strict) {
            Ok(bundle) => lines(&not_yet(&bundle)),
            Err(found) => lines(&found),
        }
    };
    let mounts = |read_only: bool| {
        move |spec: &mut Value| {
            spec["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
            let mount = json!({"name": "data", "mountPath": "/data", "readOnly": read_only});
            spec["container"]["volumeMounts"] = json!([mount]);
        }
    };
    assert_eq!(of(&|_| {}), "");
    assert_eq!(of(&mounts(true)), "");
    let found = of(&mounts(false));
    assert!(found.contains("job.kat"), "{found}");
    assert!(
        found.contains(
            "spec.concurrencyPolicy: the Job writes to a volume that keeps its data, so its runs can't overlap"
        ),
        "{found}"
    );
    let found = of(&|spec| spec["container"]["hostNetwork"] = json!(true));
    assert!(
        found.contains("the Job uses devices, groups or the network of its machine"),
        "{found}"
    );
}

#[test]
fn the_settings_of_a_namespace_are_checked_and_have_an_effect() {
    let of = |spec: Value| {
        let mut document = least(DocumentKind::Namespace);
        document["spec"] = spec;
        let files = [file("namespace.kat", &document)];
        match parse(&files, DecodeMode::Strict) {
            Ok(bundle) => lines(&not_yet(&bundle)),
            Err(found) => lines(&found),
        }
    };
    let whole = json!({
        "isolation": "Shared", "allowNamespaces": ["*"], "ingressHosts": ["*.shop.example.org"],
        "quota": {"cpu": "4", "secretBytes": "1Mi"}, "defaults": {"requests": {"cpu": "100m"}},
    });
    assert_eq!(of(whole.clone()), "");
    let mut document = least(DocumentKind::Namespace);
    document["spec"] = whole;
    let spec = parsed(&[file("namespace.kat", &document)]).namespace;
    let spec = spec.and_then(|namespace| namespace.spec).unwrap();
    let quota = spec.quota.unwrap();
    assert_eq!(quota.cpu, Some(MilliCpu(4000)));
    assert_eq!(quota.secret_bytes, Some(Bytes(1 << 20)));
    let requests = spec.defaults.unwrap().requests;
    assert_eq!((requests.cpu, requests.memory), (Some(MilliCpu(100)), None));
    let open = json!({"isolation": "Shared", "allowNamespaces": ["*", "ops"]});
    assert_eq!(of(open), "");
    let names: Vec<String> = (0..65).map(|number| format!("team-{number}")).collect();
    assert_eq!(
        of(json!({"allowNamespaces": names})),
        "[range] namespace.kat:8:24: spec.allowNamespaces: found 65 namespaces, expected at most 64 (write \"*\" for all namespaces)"
    );
    let found = of(json!({"isolation": "private", "ingressHosts": ["a b"], "quota": {"pods": 1}}));
    for expected in [
        "spec.isolation: found `private`, expected one of Private, Shared",
        "spec.ingressHosts[0]: `a b` is not a host name",
        "spec.quota.pods: unknown field `pods`",
    ] {
        assert!(found.contains(expected), "{expected} is not in {found}");
    }
}

#[test]
fn the_new_settings_of_a_cluster_are_checked_and_those_without_an_effect_refused() {
    let of = |spec: Value| said(DocumentKind::ClusterConfiguration, spec);
    assert_eq!(of(json!({"isolation": "None"})), "");
    assert_eq!(of(json!({"isolation": "Audit"})), "");
    assert_eq!(of(json!({"isolation": "Namespaces"})), "");
    let acme = json!({
        "directory": "https://acme.example.org/directory", "email": "a@b.example",
        "agreeToTerms": true, "eab": {"secret": "acme-eab"},
        "dns": [{"zone": "example.org", "rfc2136": {"server": "ns1", "tsig": {"secret": "key"}}}],
    });
    assert_eq!(of(json!({"acme": acme})), "");
    assert_eq!(
        of(json!({"acme": {"dns": [{"zone": "example.org", "hook": "own-dns"}]}})),
        ""
    );
    let found = of(json!({
        "acme": {"directory": "http://a", "email": "a", "dns": [{"zone": "a.example"}, {"zone": "b.example", "hook": "../b"}]},
        "ingress": {"trustedProxies": ["proxy"]},
        "virtualAddresses": [{"address": "192.168.1.9"}, {"address": "192.168.1.9/24", "interface": "a/b"}],
    }));
    for expected in [
        "spec.acme.directory: `http://a` is not a URL that begins with `https://`",
        "spec.acme.email: `a` is not an address of mail",
        "spec.acme.dns[0]: found neither rfc2136 nor hook",
        "spec.acme.dns[1].hook: `../b` may have only",
        "spec.ingress.trustedProxies[0]: `proxy` is not an address or a range",
        "spec.virtualAddresses[0].address: `192.168.1.9` is not an address with the prefix",
        "spec.virtualAddresses[1].interface: `a/b` is not the name of an interface",
    ] {
        assert!(found.contains(expected), "{expected} is not in {found}");
    }
}

#[test]
fn routes_stand_alone_and_have_a_target_outside() {
    let document = |host: &str| {
        format!(
            "apiVersion: kat.dws.rip/v1alpha1\nkind: Route\nspec: {{host: {host}, to: \"http://192.0.2.5:5000\", tls: true}}\n"
        )
    };
    let two = SourceFile {
        name: "route.kat".to_owned(),
        text: format!(
            "{}---\n{}",
            document("nas.example.org"),
            document("tv.example.org")
        ),
    };
    let bundle = parsed(&[two]);
    assert_eq!(bundle.routes.len(), 2);
    assert_eq!(not_yet(&bundle), []);
    let beside = [
        file("workload.kat", &least(DocumentKind::Workload)),
        SourceFile {
            name: "route.kat".to_owned(),
            text: document("nas.example.org"),
        },
    ];
    let found = lines(&parse(&beside, DecodeMode::Strict).unwrap_err());
    assert!(found.contains("a Route belongs to no workload"), "{found}");
    let wrong = SourceFile {
        name: "route.kat".to_owned(),
        text: document("nas").replace("http://", "ftp://"),
    };
    let found = parse(&[wrong], DecodeMode::Strict).unwrap_err();
    assert!(
        lines(&found).contains("spec.to: `ftp://192.0.2.5:5000` is not a URL"),
        "{}",
        lines(&found)
    );
}
