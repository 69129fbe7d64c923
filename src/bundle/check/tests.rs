//! Values that each check accepts and refuses.

use super::*;

fn accepts(check: fn(&str) -> CheckResult, texts: &[&str]) {
    for text in texts {
        assert_eq!(check(text), Ok(()), "{text:?} is refused");
    }
}

fn refuses(check: fn(&str) -> CheckResult, texts: &[&str]) {
    for text in texts {
        assert!(check(text).is_err(), "{text:?} is accepted");
    }
}

#[test]
fn images() {
    let digest = format!("registry.example/web@sha256:{}", "a".repeat(64));
    let both = format!("registry.example/web:1@sha256:{}", "0".repeat(64));
    accepts(
        image,
        &[
            "web",
            "web:1",
            "library/web:1.2-rc_3",
            "registry.lab:5000/web:1",
            "localhost/web",
            "10.0.0.1:5000/a/b/c",
            "quay.io/a__b/c-d.e:latest",
            &digest,
            &both,
        ],
    );
    refuses(
        image,
        &[
            "",
            "web:",
            "Web:1",
            "a b",
            "a//b",
            "/a",
            "a/",
            "registry:99999/web",
            "a@sha256:xyz",
            "web:-1",
            "https://registry.example/web",
            "a:b:c",
            "-web",
            "web\n",
            "$(id)",
            "--rm",
        ],
    );
    let hint = |text: &str| image(text).unwrap_err().hint.unwrap_or_default();
    assert_eq!(
        hint("registry.example/Web:1"),
        "write the name in lower case"
    );
    assert_eq!(hint("docker://web"), "leave `docker://` out");
    accepts(repository, &["registry.example:5000/cache/web", "web"]);
    refuses(repository, &["registry.example/web:1", "a@sha256:0", ""]);
    accepts(platform, &["linux/arm64", "linux/arm/v7"]);
    refuses(platform, &["linux", "linux/", "Linux/arm64", "a/b/c/d"]);
}

#[test]
fn names() {
    accepts(label, &["web", "a", "0", "a-b-1", &"x".repeat(40)]);
    refuses(
        label,
        &["", "Web", "a_b", "-a", "a-", "a.b", "ü", &"x".repeat(41)],
    );
    assert_eq!(
        label("My_Web").unwrap_err().hint.unwrap(),
        "`my-web` would be accepted"
    );
    accepts(namespace, &["shop", "kat-core"]);
    refuses(namespace, &["node", "Shop"]);
    accepts(port_name, &["web", "h2"]);
    refuses(port_name, &["80", "8-0", "Web"]);
    accepts(variable, &["A", "_a1", "PATH_2"]);
    refuses(variable, &["", "1A", "A-B", "A.B", "A B", "Ä", "A=secret"]);
    assert!(!variable("A=secret").unwrap_err().message.contains("secret"));
    accepts(label_key, &["disk", "kat.dws.rip/nodeName", "a.b_c-D"]);
    refuses(label_key, &["", "/a", "a/", "A.B/c", "a/b/c", "-a", "a b"]);
    accepts(label_value, &["", "ssd", "a.b_c-D", "1"]);
    refuses(label_value, &["-", "a b", "a/b", &"x".repeat(64)]);
    accepts(host, &["web.example.org", "*.example.org", "localhost"]);
    refuses(
        host,
        &["", "*", "*.", "Web.example.org", "a..b", "http://a", "a:80"],
    );
    accepts(domain, &["kat.cluster.local", "lan"]);
    refuses(domain, &["", "a.", ".a", "A.b", &"x.".repeat(80)]);
    accepts(capability, &["NET_RAW", "SYS_ADMIN"]);
    refuses(capability, &["CAP_NET_RAW", "net_raw", "ALL", "", "NONE"]);
    accepts(capability_or_all, &["ALL", "CHOWN"]);
    assert_eq!(
        capability("CAP_NET_RAW").unwrap_err().hint.unwrap(),
        "did you mean `NET_RAW`?"
    );
    accepts(secret_key, &["PASSWORD", "tls.crt"]);
    refuses(secret_key, &["", ".a", "a/b", ".."]);
    accepts(quadlet_key, &["Ulimit", "NoNewPrivileges"]);
    refuses(
        quadlet_key,
        &[
            "",
            "ulimit",
            "Network",
            "PodmanArgs",
            "Volume",
            "A=B",
            "[Service]",
        ],
    );
    let hint = quadlet_key("Ulimits").unwrap_err().hint.unwrap();
    assert_eq!(hint, "did you mean `Ulimit`?");
    accepts(group, &["dialout", "video"]);
    refuses(group, &["", "0", "a b", "a:b"]);
}

#[test]
fn values() {
    accepts(absolute_path, &["/", "/app", "/a b/c"]);
    refuses(
        absolute_path,
        &["", "app", "~/a", "/a/../b", "/a:b", "/a\nb", "/.."],
    );
    refuses(folder_path, &["/", "//", "/."]);
    accepts(
        device,
        &[
            "/dev/ttyUSB0",
            "/dev/dri/card0",
            "/dev/a:/dev/b",
            "/dev/a:/dev/b:r",
        ],
    );
    refuses(
        device,
        &[
            "/dev",
            "/dev/",
            "/etc/passwd",
            "/dev/../etc",
            "/dev/a:",
            "/dev/a:rw",
            "/dev/a:/etc/b",
            "/dev/a:/dev/b:x",
        ],
    );
    accepts(relative_path, &[".", "./Dockerfile", "a/b"]);
    refuses(relative_path, &["", "/a", "..", "a/../b", "a:b"]);
    accepts(unit_value, &["nofile=65536", "a b", "100%"]);
    refuses(unit_value, &["", " a", "a\\", "\"a\"", "a\nb"]);
    accepts(url_path, &["/", "/healthz?full=1"]);
    refuses(url_path, &["", "healthz", "/a b", "/ü"]);
    accepts(signal, &["SIGTERM", "SIGINT", "SIGRTMIN+3"]);
    refuses(
        signal,
        &["TERM", "15", "sigterm", "SIGRTMIN+99", "SIGRTMIN++1", ""],
    );
    assert_eq!(
        signal("term").unwrap_err().hint.unwrap(),
        "did you mean `SIGTERM`?"
    );
    accepts(
        user,
        &["0", "1000", "1000:1000", "nginx", "nginx:0", "65535"],
    );
    refuses(user, &["", ":", "1000:", "65536", "-1", "a b", "1:2:3"]);
    accepts(
        git_url,
        &[
            "https://example.org/web.git",
            "git@example.org:web.git",
            "ssh://git@h/x",
        ],
    );
    refuses(
        git_url,
        &[
            "",
            "web",
            "file:///etc",
            "ext::sh -c id",
            "--upload-pack=x",
            "https://",
            "https://-x",
        ],
    );
    accepts(git_reference, &["main", "v1.2", "feature/x"]);
    refuses(
        git_reference,
        &[
            "", "-x", "a..b", "a b", "a:b", "/a", "a/", "a.lock", "@", "a@{1}",
        ],
    );
    accepts(
        commit,
        &["0123abc", "0123456789abcdef0123456789abcdef01234567"],
    );
    refuses(commit, &["", "0123ab", "xyz0123"]);
    accepts(
        time_zone,
        &[
            "UTC",
            "Europe/Berlin",
            "America/Argentina/Buenos_Aires",
            "Etc/GMT+1",
        ],
    );
    refuses(time_zone, &["", "/UTC", "../etc/passwd", "Europe/"]);
    accepts(
        endpoint,
        &[
            "home.example.org:51820",
            "192.0.2.1:1",
            "[2001:db8::1]:51820",
        ],
    );
    refuses(
        endpoint,
        &[
            "",
            "host",
            "host:0",
            "host:99999",
            "2001:db8::1:51820",
            ":1",
            "host:+1",
        ],
    );
    accepts(argument, &["", "a\nb", "ü"]);
    refuses(argument, &["a\0b", &"x".repeat(140_000)]);
    accepts(one_line, &["auto"]);
    refuses(one_line, &["a\nExecStart=/bin/sh"]);
}

#[test]
fn cron_expressions() {
    accepts(
        cron,
        &[
            "* * * * *",
            "*/5 * * * *",
            "0 0 1 1 0",
            "0-30/10,45 1,2 * jan-mar mon-fri",
            "0 0 * * 7",
            "@daily",
            "@yearly",
        ],
    );
    refuses(
        cron,
        &[
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            "a * * * *",
            "1- * * * *",
            ", * * * *",
            "@reboot",
            "@dayly",
            "*/-5 * * * *",
        ],
    );
    assert_eq!(
        cron("0 25 * * *").unwrap_err().message,
        "`25` does not fit the hour: `*`, 0 to 23, a range, a list or a step"
    );
}

#[test]
fn values_of_routes() {
    accepts(path_prefix, &["/", "/shop", "/shop/", "/a/b.c/~d", "/..a"]);
    refuses(
        path_prefix,
        &[
            "",
            "shop",
            "//",
            "/a//b",
            "/a//",
            "/./a",
            "/a/..",
            "/a?b",
            "/a#b",
            "/%2e%2E/a",
            "/a%2Fb",
            "/a\\b",
            "/a b",
        ],
    );
    accepts(
        web_url,
        &[
            "https://example.com",
            "http://192.168.1.5:5000",
            "http://[2001:db8::1]:80/a/b",
        ],
    );
    refuses(
        web_url,
        &[
            "",
            "example.com",
            "ftp://a",
            "https://",
            "https://a b",
            "https://user@a",
            "https://a?b",
            "https://a/#b",
            "https://a:0",
            "http://[::1",
            "javascript:alert(1)",
        ],
    );
    accepts(https_url, &["https://acme.example.org/directory"]);
    refuses(
        https_url,
        &["http://acme.example.org", "https://", "acme.example.org"],
    );
    accepts(
        server,
        &["ns1", "ns1.example.org:53", "192.0.2.1", "[2001:db8::1]:53"],
    );
    refuses(server, &["", "ns1:", "2001:db8::1", "a b", "ns1:99999"]);
    accepts(
        source_range,
        &["192.0.2.1", "192.0.2.0/24", "2001:db8::/32", "0.0.0.0/0"],
    );
    refuses(
        source_range,
        &["", "example.org", "192.0.2.1/24", "192.0.2.0/33", "*"],
    );
    assert_eq!(
        source_range("192.0.2.1/24").unwrap_err().hint.unwrap(),
        "write `192.0.2.0/24`"
    );
    accepts(
        address_of_network,
        &["192.168.1.9/24", "192.0.2.1/32", "2001:db8::9/64"],
    );
    refuses(
        address_of_network,
        &[
            "192.168.1.9",
            "192.168.1.0/24",
            "192.168.1.255/24",
            "127.0.0.1/8",
            "0.0.0.0/0",
            "224.0.0.1/24",
            "::1/128",
        ],
    );
    accepts(email, &["a@b.example", "first.last+tag@example.org"]);
    refuses(email, &["", "a", "@b.c", "a@", "a@b", "a b@c.d", "<a@b.c>"]);
    accepts(header, &["X-Frame-Options", "remote_user"]);
    refuses(header, &["", "X Y", "X:", "Ü", "a\nb"]);
    accepts(header_value, &["", "DENY", "max-age=1; x"]);
    refuses(header_value, &[" a", "a\nb", "a\0", "ü"]);
    accepts(interface, &["auto", "eth0", "br-lan.5"]);
    refuses(interface, &["", ".", "a/b", "a b", "sixteen-letters-"]);
    accepts(machine_access, &["api", "metadata"]);
    refuses(machine_access, &["", "API", "all"]);
    accepts(namespace_or_all, &["*", "shop"]);
    refuses(namespace_or_all, &["", "node", "**", "shop*"]);
    let hint = cron("@reboot").unwrap_err().hint.unwrap();
    assert!(hint.contains("no boot"), "{hint}");
}
