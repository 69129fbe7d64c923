//! The one table of authorization: which caller may use which route
//! (docs/internals/identity-and-access.md, Who may call what).

use crate::{
    access::authentication::{Caller, SocketAccess},
    errors::ApiError,
};
use kat_types::api::{ClusterOverview, OverviewRelayState, Scope};

/// The namespace of KAT's own workloads.
pub(crate) use kat_types::resource::CORE_NAMESPACE;
/// How local users of a machine without etcd bring rights of their own.
const BRING_A_CONNECTION: &str = "or bring a connection: `katcall context add NAME --file FILE`, \
     or KAT_SERVER=127.0.0.1 with KAT_TOKEN and KAT_CA, which this machine passes on unopened";

/// The callers that may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAccess {
    /// Every caller that can connect.
    Anyone,
    /// Every authenticated caller, including machines.
    Authenticated,
    /// Reads of the whole cluster: `admin` and `read`.
    ReadCluster,
    /// As [`RouteAccess::ReadCluster`]; on a machine without etcd also its local users, who see only
    /// this machine's part, and of other machines what the overview has.
    ReadMachine,
    /// As [`RouteAccess::ReadMachine`]; also the machine in the path, by its certificate.
    ReadNode,
    /// As [`RouteAccess::ReadMachine`]; also every machine, by its certificate.
    ReadOverview,
    /// Reads of one namespace: `admin`, `read`, and `deploy` of that namespace.
    ReadNamespace,
    /// Reads of files as written, which hold values of environment variables: `admin` and
    /// `deploy` of that namespace.
    ReadFiles,
    /// Writes in one namespace: `admin` and `deploy` of that namespace.
    Deploy,
    /// Only `admin`.
    Admin,
    /// The machine in the path, by its certificate.
    Report,
    /// `admin`, or the machine in the path, by its certificate, to be emptied and to leave the
    /// cluster.
    Leave,
    /// Reads of a machine that is about to join: as [`RouteAccess::ReadCluster`], and join tokens.
    BeforeJoin,
    /// A join token.
    Join,
    /// Every caller that proves to own a machine's known key, which the handler checks, since such
    /// a machine's certificate may have expired.
    KnownKey,
}

/// Namespace and machine that a call concerns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallScope<'a> {
    /// Namespace in the path or the query.
    pub namespace: Option<&'a str>,
    /// Machine in the path.
    pub node: Option<&'a str>,
}

/// Admits a caller, or returns why not.
///
/// # Errors
/// [`ApiError::Unauthorized`] for an anonymous caller, [`ApiError::Forbidden`] for a known caller
/// without the right.
pub fn check(access: RouteAccess, caller: &Caller, target: CallScope<'_>) -> Result<(), ApiError> {
    if allowed(access, caller, target) {
        return check_own_namespace(access, caller, target);
    }
    if *caller == Caller::Anonymous {
        return Err(ApiError::Unauthorized("who calls is not said".to_owned()));
    }
    if caller.sees_only_this_machine() {
        return Err(no_store_error(None));
    }
    let of_namespace = match target.namespace {
        Some(namespace) => format!("of the namespace `{namespace}`"),
        None => "of this namespace".to_owned(),
    };
    let (needed, hint) = match access {
        RouteAccess::Anyone | RouteAccess::Authenticated | RouteAccess::KnownKey => {
            ("a token or a certificate".to_owned(), None)
        }
        RouteAccess::ReadCluster
        | RouteAccess::ReadMachine
        | RouteAccess::ReadNode
        | RouteAccess::BeforeJoin => ("the scope `admin` or `read`".to_owned(), None),
        RouteAccess::ReadOverview => (
            "the scope `admin` or `read`, or the certificate of a machine".to_owned(),
            None,
        ),
        RouteAccess::ReadNamespace => (
            format!("the scope `admin`, `read` or `deploy` {of_namespace}"),
            None,
        ),
        RouteAccess::ReadFiles => (
            format!("the scope `admin` or `deploy` {of_namespace}"),
            Some("files hold values of environment variables, which the scope `read` does not see"),
        ),
        RouteAccess::Deploy => (
            format!("the scope `admin` or `deploy` {of_namespace}"),
            None,
        ),
        RouteAccess::Admin => ("the scope `admin`".to_owned(), None),
        RouteAccess::Leave => (
            "the scope `admin`, or the certificate of this very machine".to_owned(),
            None,
        ),
        RouteAccess::Report => ("the certificate of this very machine".to_owned(), None),
        RouteAccess::Join => (
            "a token for joining".to_owned(),
            Some("`katcall token create --join` makes one"),
        ),
    };
    Err(ApiError::Forbidden {
        message: format!("`{caller}` may not do this; it needs {needed}"),
        hint: elsewhere(access, caller, target).or_else(|| hint.map(str::to_owned)),
    })
}

/// Tells a deploy token that asks outside its namespace which one it has: who got it as a variable
/// may not know.
fn elsewhere(access: RouteAccess, caller: &Caller, target: CallScope<'_>) -> Option<String> {
    let Caller::Token {
        scope: Scope::Deploy { namespace },
        ..
    } = caller
    else {
        return None;
    };
    if target.namespace == Some(namespace) {
        return None;
    }
    let place = match access {
        RouteAccess::ReadCluster | RouteAccess::ReadMachine | RouteAccess::ReadNode => {
            String::new()
        }
        RouteAccess::ReadNamespace => format!(": `-n {namespace}` names it"),
        // The namespace may be that of files.
        RouteAccess::ReadFiles | RouteAccess::Deploy => format!(
            ": write `namespace: {namespace}` below `metadata` of the files, or `-n {namespace}` to commands that take it"
        ),
        RouteAccess::Anyone
        | RouteAccess::Authenticated
        | RouteAccess::KnownKey
        | RouteAccess::BeforeJoin
        | RouteAccess::ReadOverview
        | RouteAccess::Admin
        | RouteAccess::Leave
        | RouteAccess::Report
        | RouteAccess::Join => return None,
    };
    Some(format!(
        "this token is for the namespace `{namespace}` alone{place}"
    ))
}

/// Only administrators write in [`CORE_NAMESPACE`].
fn check_own_namespace(
    access: RouteAccess,
    caller: &Caller,
    target: CallScope<'_>,
) -> Result<(), ApiError> {
    let own = access == RouteAccess::Deploy && target.namespace == Some(CORE_NAMESPACE);
    if own && !caller.is_admin() {
        return Err(ApiError::Forbidden {
            message: format!("the namespace `{CORE_NAMESPACE}` belongs to KAT itself"),
            hint: Some("use another namespace, or a token with the scope `admin`".to_owned()),
        });
    }
    Ok(())
}

/// The error of a call that a machine without the store cannot answer: what this machine is, and
/// where to ask instead. `overview` is what it last read of the cluster, with who was asked.
pub(crate) fn no_store_error(overview: Option<&ClusterOverview>) -> ApiError {
    let relay = overview.and_then(|overview| overview.relay.as_ref());
    let name = relay.map_or_else(String::new, |relay| format!(" ({})", relay.node));
    let mut message = format!(
        "this machine{name} does not hold the cluster's store: its socket shows its own instances and the cluster's overview"
    );
    if let Some(silence) = relay.and_then(OverviewRelayState::silence) {
        message.push_str("; ");
        message.push_str(&silence);
    }
    let elsewhere = relay.map_or_else(String::new, OverviewRelayState::elsewhere);
    let elsewhere = match elsewhere.as_str() {
        "" => "a machine that holds it",
        named => named,
    };
    ApiError::Forbidden {
        message,
        hint: Some(format!("ask on {elsewhere}, {BRING_A_CONNECTION}")),
    }
}

fn allowed(access: RouteAccess, caller: &Caller, target: CallScope<'_>) -> bool {
    if matches!(access, RouteAccess::Anyone | RouteAccess::KnownKey) {
        return true;
    }
    let reads = [
        RouteAccess::Authenticated,
        RouteAccess::ReadCluster,
        RouteAccess::ReadMachine,
        RouteAccess::ReadNode,
        RouteAccess::ReadOverview,
        RouteAccess::ReadNamespace,
        RouteAccess::BeforeJoin,
    ];
    let machines = [RouteAccess::Report, RouteAccess::Join];
    match caller {
        Caller::Anonymous => false,
        Caller::Node(machine) => match access {
            RouteAccess::Report | RouteAccess::ReadNode | RouteAccess::Leave => {
                target.node == Some(machine.name.as_str())
            }
            other => matches!(
                other,
                RouteAccess::Authenticated | RouteAccess::ReadOverview
            ),
        },
        Caller::Leader(_) => access == RouteAccess::Authenticated,
        Caller::Socket {
            access: SocketAccess::ThisMachine,
            ..
        } => matches!(
            access,
            RouteAccess::Authenticated
                | RouteAccess::ReadMachine
                | RouteAccess::ReadNode
                | RouteAccess::ReadOverview
        ),
        Caller::Admin(_)
        | Caller::Socket {
            access: SocketAccess::Admin,
            ..
        } => !machines.contains(&access),
        Caller::Token { scope, .. } => match scope {
            Scope::Admin => !machines.contains(&access),
            Scope::Join => matches!(access, RouteAccess::BeforeJoin | RouteAccess::Join),
            Scope::Read => reads.contains(&access),
            Scope::Deploy { namespace } => match access {
                RouteAccess::Authenticated => true,
                RouteAccess::ReadNamespace | RouteAccess::ReadFiles | RouteAccess::Deploy => {
                    target.namespace == Some(namespace)
                }
                _ => false,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{access::authentication::CertifiedMachine, routes::ROUTES};
    use kat_types::api::{ApiTime, AskedServer};

    fn machine(name: &str) -> CertifiedMachine {
        CertifiedMachine {
            name: name.to_owned(),
            key_hash: "key".to_owned(),
        }
    }

    fn token(scope: Scope) -> Caller {
        Caller::Token {
            id: "t".to_owned(),
            name: String::new(),
            scope,
        }
    }

    fn deploy(namespace: &str) -> Caller {
        token(Scope::Deploy {
            namespace: namespace.to_owned(),
        })
    }

    fn socket(access: SocketAccess) -> Caller {
        Caller::Socket {
            uid: Some(1000),
            access,
        }
    }

    /// The callers that the route admits, as letters: `x` anonymous, `a` admin, `r` read token, `d`
    /// deploy token of the namespace, `o` deploy token of another namespace, `n` the machine
    /// itself, `m` another machine, `l` the leader's certificate, `s` a local user on a machine
    /// without etcd, `j` a join token.
    fn letters(access: RouteAccess) -> String {
        let target = CallScope {
            namespace: Some("shop"),
            node: Some("n1"),
        };
        let callers = [
            ('x', Caller::Anonymous),
            ('a', token(Scope::Admin)),
            ('r', token(Scope::Read)),
            ('d', deploy("shop")),
            ('o', deploy("other")),
            ('n', Caller::Node(machine("n1"))),
            ('m', Caller::Node(machine("n2"))),
            ('l', Caller::Leader(machine("n1"))),
            ('s', socket(SocketAccess::ThisMachine)),
            ('j', token(Scope::Join)),
        ];
        for admin in [Caller::Admin(machine("n1")), socket(SocketAccess::Admin)] {
            let same = check(access, &admin, target).is_ok()
                == check(access, &callers[1].1, target).is_ok();
            assert!(same, "{access:?}: {admin} is an admin like any other");
        }
        let allowed = callers
            .iter()
            .filter(|(_, caller)| check(access, caller, target).is_ok());
        allowed.map(|(letter, _)| letter).collect()
    }

    /// Every route of the API with its permitted callers. A new route fails this test until it is
    /// listed here.
    #[test]
    fn every_route_lets_in_whom_it_should_and_nobody_else() {
        let table = [
            ("GET", "/healthz", "xardonmlsj"),
            ("GET", "/version", "xardonmlsj"),
            ("GET", "/openapi.json", "ardonmls"),
            ("GET", "/metrics", "ar"),
            ("GET", "/v1alpha1/metrics/targets", "ar"),
            ("GET", "/v1alpha1/namespaces", "ar"),
            ("POST", "/v1alpha1/namespaces", "a"),
            ("GET", "/v1alpha1/namespaces/{namespace}", "ard"),
            ("DELETE", "/v1alpha1/namespaces/{namespace}", "a"),
            ("PUT", "/v1alpha1/namespaces/{namespace}/quota", "a"),
            ("GET", "/v1alpha1/workloads", "ar"),
            ("GET", "/v1alpha1/n/{namespace}/workloads", "ard"),
            ("POST", "/v1alpha1/n/{namespace}/workloads", "ad"),
            ("GET", "/v1alpha1/n/{namespace}/workloads/{workload}", "ard"),
            ("PUT", "/v1alpha1/n/{namespace}/workloads/{workload}", "ad"),
            (
                "DELETE",
                "/v1alpha1/n/{namespace}/workloads/{workload}",
                "ad",
            ),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/generations",
                "ard",
            ),
            (
                "POST",
                "/v1alpha1/n/{namespace}/workloads/{workload}/rollback",
                "ad",
            ),
            (
                "PUT",
                "/v1alpha1/n/{namespace}/workloads/{workload}/pause",
                "ad",
            ),
            (
                "DELETE",
                "/v1alpha1/n/{namespace}/workloads/{workload}/pause",
                "ad",
            ),
            (
                "PUT",
                "/v1alpha1/n/{namespace}/workloads/{workload}/replicas",
                "ad",
            ),
            (
                "PUT",
                "/v1alpha1/n/{namespace}/workloads/{workload}/stop",
                "ad",
            ),
            (
                "DELETE",
                "/v1alpha1/n/{namespace}/workloads/{workload}/stop",
                "ad",
            ),
            ("GET", "/v1alpha1/runs", "ar"),
            ("GET", "/v1alpha1/n/{namespace}/runs", "ard"),
            (
                "POST",
                "/v1alpha1/n/{namespace}/workloads/{workload}/runs",
                "ad",
            ),
            (
                "DELETE",
                "/v1alpha1/n/{namespace}/workloads/{workload}/runs/{run}",
                "ad",
            ),
            (
                "PUT",
                "/v1alpha1/n/{namespace}/workloads/{workload}/image",
                "ad",
            ),
            (
                "PUT",
                "/v1alpha1/n/{namespace}/workloads/{workload}/restart",
                "ad",
            ),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/source",
                "ad",
            ),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/files",
                "ard",
            ),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/files/{file}",
                "ad",
            ),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/instances",
                "ard",
            ),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/gone-instances",
                "ard",
            ),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/instances/{instance}/logs",
                "ard",
            ),
            (
                "POST",
                "/v1alpha1/n/{namespace}/workloads/{workload}/instances/{instance}/exec",
                "ad",
            ),
            (
                "POST",
                "/v1alpha1/n/{namespace}/workloads/{workload}/instances/{instance}/forward",
                "ad",
            ),
            ("GET", "/v1alpha1/instances", "ars"),
            ("GET", "/v1alpha1/n/{namespace}/instances", "ard"),
            ("GET", "/v1alpha1/n/{namespace}/instances/{instance}", "ard"),
            ("GET", "/v1alpha1/routes", "ar"),
            ("PUT", "/v1alpha1/routes", "a"),
            ("DELETE", "/v1alpha1/routes", "a"),
            ("GET", "/v1alpha1/n/{namespace}/routes", "ard"),
            ("GET", "/v1alpha1/virtual-addresses", "ar"),
            ("GET", "/v1alpha1/ingress/authority", "ardonmls"),
            ("GET", "/v1alpha1/volumes", "ar"),
            ("GET", "/v1alpha1/n/{namespace}/volumes", "ard"),
            (
                "GET",
                "/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{volume}",
                "ard",
            ),
            (
                "DELETE",
                "/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{volume}",
                "ad",
            ),
            (
                "PUT",
                "/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{volume}/move",
                "ad",
            ),
            (
                "DELETE",
                "/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{volume}/move",
                "ad",
            ),
            (
                "PUT",
                "/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{volume}/forget",
                "ad",
            ),
            ("GET", "/v1alpha1/secrets", "ar"),
            ("GET", "/v1alpha1/n/{namespace}/secrets", "ard"),
            ("GET", "/v1alpha1/n/{namespace}/secrets/{secret}", "ard"),
            ("PUT", "/v1alpha1/n/{namespace}/secrets/{secret}", "ad"),
            ("DELETE", "/v1alpha1/n/{namespace}/secrets/{secret}", "ad"),
            ("POST", "/v1alpha1/sealing-key", "a"),
            ("GET", "/v1alpha1/n/{namespace}/usage", "ard"),
            ("GET", "/v1alpha1/nodes", "ars"),
            ("GET", "/v1alpha1/nodes/{node}", "arns"),
            ("GET", "/v1alpha1/nodes/{node}/usage", "arns"),
            ("GET", "/v1alpha1/nodes/{node}/metrics", "arns"),
            ("DELETE", "/v1alpha1/nodes/{node}", "an"),
            ("PUT", "/v1alpha1/nodes/{node}/drain", "an"),
            ("DELETE", "/v1alpha1/nodes/{node}/drain", "a"),
            ("PUT", "/v1alpha1/nodes/{node}/labels", "a"),
            ("PUT", "/v1alpha1/nodes/{node}/taints", "a"),
            ("POST", "/v1alpha1/nodes/{node}/status", "n"),
            ("GET", "/v1alpha1/nodes/{node}/state", "n"),
            ("POST", "/v1alpha1/nodes/{node}/certificates", "xardonmlsj"),
            ("GET", "/v1alpha1/nodes/{node}/membership", "n"),
            ("POST", "/v1alpha1/join", "j"),
            ("GET", "/v1alpha1/events", "ard"),
            ("GET", "/v1alpha1/isolation", "ard"),
            ("GET", "/v1alpha1/config/cluster", "arj"),
            ("PUT", "/v1alpha1/config/cluster", "a"),
            ("GET", "/v1alpha1/config/cluster/revisions", "a"),
            ("GET", "/v1alpha1/overview", "arnms"),
            ("GET", "/v1alpha1/registries", "a"),
            ("PUT", "/v1alpha1/registries/{host}", "a"),
            ("DELETE", "/v1alpha1/registries/{host}", "a"),
            ("GET", "/v1alpha1/n/{namespace}/registries", "ard"),
            ("PUT", "/v1alpha1/n/{namespace}/registries/{registry}", "ad"),
            (
                "DELETE",
                "/v1alpha1/n/{namespace}/registries/{registry}",
                "ad",
            ),
            ("GET", "/v1alpha1/tokens", "a"),
            ("POST", "/v1alpha1/tokens", "a"),
            ("DELETE", "/v1alpha1/tokens/{token}", "a"),
            ("GET", "/v1alpha1/authorities/successions", "xardonmlsj"),
            ("GET", "/v1alpha1/authorities", "ar"),
            ("POST", "/v1alpha1/authorities/{authority}/rotate", "a"),
            ("POST", "/v1alpha1/authorities/migration", "a"),
            ("GET", "/v1alpha1/authorities/exposed", "a"),
        ];
        let found: Vec<_> = ROUTES
            .iter()
            .map(|route| (route.verb.as_str(), route.path, letters(route.access)))
            .collect();
        let expected: Vec<_> = table
            .iter()
            .map(|(method, path, letters)| (*method, *path, (*letters).to_owned()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_administrators_write_in_the_namespace_of_kat_itself() {
        let target = CallScope {
            namespace: Some(CORE_NAMESPACE),
            node: None,
        };
        let deploy = deploy(CORE_NAMESPACE);
        let refused = check(RouteAccess::Deploy, &deploy, target).unwrap_err();
        let ApiError::Forbidden { message, .. } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(message, "the namespace `kat-core` belongs to KAT itself");
        assert_eq!(check(RouteAccess::ReadNamespace, &deploy, target), Ok(()));
        let admin = token(Scope::Admin);
        assert_eq!(check(RouteAccess::Deploy, &admin, target), Ok(()));
    }

    #[test]
    fn a_deploy_token_elsewhere_is_told_its_own_namespace() {
        let other = CallScope {
            namespace: Some("default"),
            node: None,
        };
        let files = ": write `namespace: shop` below `metadata` of the files, or `-n shop` to commands that take it";
        for (access, target, place) in [
            (
                RouteAccess::ReadNamespace,
                CallScope::default(),
                ": `-n shop` names it",
            ),
            (RouteAccess::ReadNamespace, other, ": `-n shop` names it"),
            // Objects of the whole cluster are in no namespace.
            (RouteAccess::ReadCluster, CallScope::default(), ""),
            (RouteAccess::Deploy, other, files),
        ] {
            let refused = check(access, &deploy("shop"), target);
            let Err(ApiError::Forbidden { hint, .. }) = refused else {
                panic!("{refused:?}");
            };
            let told = format!("this token is for the namespace `shop` alone{place}");
            assert_eq!(hint, Some(told), "{access:?}");
        }
        let refused = check(RouteAccess::Admin, &deploy("shop"), other);
        assert!(matches!(
            refused,
            Err(ApiError::Forbidden { hint: None, .. })
        ));
        // The error names the namespace that the files mean.
        let refused = check(RouteAccess::Deploy, &deploy("shop"), other).unwrap_err();
        let ApiError::Forbidden { message, .. } = refused else {
            panic!("{refused:?}");
        };
        assert!(
            message.ends_with("it needs the scope `admin` or `deploy` of the namespace `default`"),
            "{message}"
        );
    }

    #[test]
    fn a_machine_without_the_store_says_where_to_ask() {
        let refused = check(
            RouteAccess::ReadCluster,
            &socket(SocketAccess::ThisMachine),
            CallScope::default(),
        );
        let Err(ApiError::Forbidden { message, hint }) = refused else {
            panic!("{refused:?}");
        };
        assert!(message.contains("does not hold the cluster's store"));
        assert!(hint.is_some_and(|hint| hint.contains("ask on a machine that holds it")));
    }

    #[test]
    fn a_machine_without_the_store_names_who_holds_it_and_who_is_silent() {
        let mut relay = OverviewRelayState {
            node: "n4".to_owned(),
            asked: vec![AskedServer {
                name: "n1".to_owned(),
                endpoints: vec!["192.168.77.11:9115".to_owned()],
                error: String::new(),
            }],
            ..OverviewRelayState::default()
        };
        let said = |relay: &OverviewRelayState| {
            let overview = ClusterOverview {
                relay: Some(relay.clone()),
                ..ClusterOverview::default()
            };
            match no_store_error(Some(&overview)) {
                ApiError::Forbidden { message, hint } => (message, hint.unwrap_or_default()),
                other => panic!("{other:?}"),
            }
        };
        let (message, hint) = said(&relay);
        assert!(
            message.starts_with("this machine (n4) does not hold"),
            "{message}"
        );
        assert!(!message.contains("answers"), "{message}");
        assert!(
            hint.starts_with("ask on n1 (192.168.77.11), or bring"),
            "{hint}"
        );
        relay.silent_since = Some(ApiTime::parse("2026-11-22T03:41:00Z"));
        let (message, _) = said(&relay);
        assert!(
            message.contains("answers since 2026-11-22T03:41:00Z, asked n1 (192.168.77.11:9115)"),
            "{message}"
        );
    }

    #[test]
    fn nobody_is_asked_to_say_who_they_are() {
        let refused = check(RouteAccess::Admin, &Caller::Anonymous, CallScope::default());
        assert!(matches!(refused, Err(ApiError::Unauthorized(_))));
    }
}
