use std::{collections::BTreeMap, net::Ipv4Addr};

use super::*;
use kat_types::{
    assignment::{Assignment, BoundSchedule, DesiredRun, WorkloadUser},
    resource::{
        Bytes, Container, EnvVar, GpuDriver, GpuRequest, ImagePullPolicy, MilliCpu, OnPartition,
        RestartCondition, RestartPolicy, WorkloadType,
    },
};

fn assignment() -> Assignment {
    Assignment {
        schema: 1,
        instance: "web-ab12c".to_owned(),
        namespace: "default".to_owned(),
        workload: "web".to_owned(),
        workload_uid: "5f0c".to_owned(),
        workload_type: WorkloadType::Service,
        labels: BTreeMap::new(),
        slot: 0,
        generation: 1,
        template_hash: "abc".to_owned(),
        user: WorkloadUser::from_index(0, "default", "web").unwrap(),
        address: Ipv4Addr::new(10, 100, 0, 2),
        image: "registry.lab:5000/web:1".to_owned(),
        container: Container::default(),
        init_containers: Vec::new(),
        sidecars: Vec::new(),
        ports: Vec::new(),
        health_check: None,
        restart_policy: RestartPolicy {
            condition: RestartCondition::Always,
            max_restarts: 5,
            reset_seconds: 3600,
        },
        created: None,
        on_partition: OnPartition::Keep,
        machine_access: Vec::new(),
        volumes: Vec::new(),
        carried: None,
        wanted: DesiredRun::Running,
        secrets: None,
        logins: None,
        run: None,
        gpu: None,
        bound: None,
        not_understood: None,
    }
}

fn render(assignment: &Assignment) -> Result<Vec<UnitFile>, RenderError> {
    Renderer::new(None)
        .unwrap()
        .instance(assignment, &RenderSettings::default())
}

/// Every line of the `.container` file that sets `key`.
fn lines<'a>(files: &'a [UnitFile], key: &str) -> Vec<&'a str> {
    files[0]
        .text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .collect()
}

#[test]
fn what_stops_without_a_leader_does_not_start_at_boot() {
    let mut one = assignment();
    assert_eq!(
        lines(&render(&one).unwrap(), "WantedBy"),
        ["default.target"]
    );
    one.on_partition = OnPartition::Stop;
    let files = render(&one).unwrap();
    assert!(lines(&files, "WantedBy").is_empty());
    assert!(!files[0].text.contains("[Install]"));
}

#[test]
fn compiled_in_templates_are_those_of_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../unit-templates");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        // `kat-net` renders its nftables rules itself, without this crate.
        .filter(|name| !name.ends_with(".nft"))
        .collect();
    names.sort();
    assert_eq!(names, TEMPLATES.map(|(name, _)| name));
}

#[test]
fn a_folder_stands_in_for_compiled_in_templates() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("journald.conf"), "own\n").unwrap();
    let renderer = Renderer::new(Some(folder.path())).unwrap();
    let files = renderer.host_files(&RenderSettings::default()).unwrap();
    assert!(files.iter().any(|file| file.text == "own\n"));
    assert!(
        renderer
            .instance(&assignment(), &RenderSettings::default())
            .is_ok()
    );
}

#[test]
fn a_wrong_template_fails_when_it_is_read() {
    for (text, word) in [
        ("{{ a | unknown }}", "unknown"),
        ("{% if %}", "journald.conf"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("journald.conf"), text).unwrap();
        let message = Renderer::new(Some(folder.path())).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn values_of_variables_stay_out_of_units_and_logs() {
    let mut assignment = assignment();
    assignment.container.env = ["geheim", "zwei\nzeilen"]
        .into_iter()
        .zip(["ONE", "TWO"])
        .map(|(value, name)| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        })
        .collect();
    let files = render(&assignment).unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "kat-default-web-ab12c.container",
            "kat-default-web-ab12c.env",
            "kat-default-web-ab12c.0.value"
        ]
    );
    for secret in ["geheim", "zwei"] {
        assert!(
            !files[0].text.contains(secret),
            "a value stands in the unit"
        );
        assert!(
            !format!("{files:?}").contains(secret),
            "a value would be logged"
        );
    }
    assert_eq!(
        lines(&files, "EnvironmentFile"),
        ["/var/lib/kat/units/20000/kat-default-web-ab12c.env"]
    );
    assert_eq!(
        lines(&files, "Secret"),
        ["kat-default-web-ab12c.0,type=env,target=TWO"]
    );
    assert_eq!(files[2].text, "zwei\nzeilen");
    assert!(lines(&files, "Environment").is_empty());
}

#[test]
fn restart_policies_are_systemds() {
    let mut assignment = assignment();
    let files = render(&assignment).unwrap();
    assert_eq!(lines(&files, "Restart"), ["always"]);
    assert_eq!(lines(&files, "StartLimitIntervalSec"), ["0"]);
    assert_eq!(lines(&files, "RestartMaxDelaySec"), ["60"]);

    assignment.restart_policy.condition = RestartCondition::MaxCount;
    let files = render(&assignment).unwrap();
    assert_eq!(lines(&files, "Restart"), ["on-failure"]);
    assert_eq!(lines(&files, "StartLimitIntervalSec"), ["3600"]);
    assert_eq!(lines(&files, "StartLimitBurst"), ["6"]);
    assert_eq!(lines(&files, "SuccessExitStatus"), ["137 143"]);
    assert_eq!(lines(&files, "RestartForceExitStatus"), ["137 143"]);

    assignment.restart_policy.condition = RestartCondition::Never;
    let files = render(&assignment).unwrap();
    assert_eq!(lines(&files, "Restart"), ["no"]);
    assert!(lines(&files, "SuccessExitStatus").is_empty());
    assert!(lines(&files, "RestartForceExitStatus").is_empty());
}

#[test]
fn limits_are_the_units() {
    let mut assignment = assignment();
    assignment.container.resources.limits.memory = Some(Bytes(64 << 20));
    for (amount, quota) in [(1500, "150%"), (100, "10%"), (1, "0.1%"), (1255, "125.5%")] {
        assignment.container.resources.limits.cpu = Some(MilliCpu(amount));
        let files = render(&assignment).unwrap();
        assert_eq!(lines(&files, "CPUQuota"), [quota]);
        assert_eq!(lines(&files, "MemoryMax"), ["67108864"]);
    }
}

#[test]
fn timeouts_leave_room_for_hold_and_grace() {
    let mut assignment = assignment();
    assignment.container.termination_grace_seconds = 90;
    let files = render(&assignment).unwrap();
    assert_eq!(lines(&files, "TimeoutStartSec"), ["90"]);
    assert_eq!(lines(&files, "StopTimeout"), ["90"]);
    assert_eq!(lines(&files, "TimeoutStopSec"), ["100"]);
}

#[test]
fn a_gpu_is_given_by_its_cdi_name_to_the_containers_that_request_one() {
    let mut assignment = assignment();
    assignment.gpu = Some("nvidia.com/gpu=0".to_owned());
    let files = render(&assignment).unwrap();
    assert_eq!(lines(&files, "AddDevice"), [""; 0], "it requests none");
    assignment.container.resources.gpu = Some(GpuRequest {
        driver: GpuDriver::Any,
        min_vram_mb: None,
    });
    let files = render(&assignment).unwrap();
    assert_eq!(lines(&files, "AddDevice"), ["nvidia.com/gpu=0"]);
    // A unit that would start without the GPU, or with another argument of Podman's, is not written.
    let expected = "web-ab12c: container.resources.gpu: the leader assigned no GPU of this machine";
    for name in [None, Some("/dev/sda"), Some("a.com/gpu=0 --privileged")] {
        assignment.gpu = name.map(str::to_owned);
        let message = render(&assignment).unwrap_err().to_string();
        assert_eq!(message, expected, "{name:?}");
    }
}

#[test]
fn the_host_name_of_each_container_leads_to_the_address_of_the_instance() {
    let mut assignment = assignment();
    let named = |name: &str, host_name: Option<&str>| Container {
        name: Some(name.to_owned()),
        image: Some("registry.lab:5000/proxy:1".to_owned()),
        hostname: host_name.map(str::to_owned),
        ..Container::default()
    };
    assignment.container.hostname = Some("rabbit".to_owned());
    assignment.init_containers = vec![named("wait", Some("rabbit"))];
    assignment.sidecars = vec![named("proxy", Some("hare")), named("logs", None)];

    let files = render(&assignment).unwrap();

    let keys = |name: &str, key: &str| -> Vec<String> {
        let file = files.iter().find(|file| file.name == name).unwrap();
        let lines = file.text.lines();
        let values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.map(str::to_owned).collect()
    };
    // Podman takes entries of /etc/hosts for the container that holds the network alone.
    assert_eq!(
        keys("kat-default-web-ab12c_net.container", "AddHost"),
        [
            "web-ab12c:10.100.0.2",
            "hare:10.100.0.2",
            "rabbit:10.100.0.2"
        ]
    );
    for (file, host_name) in [
        ("kat-default-web-ab12c.container", "rabbit"),
        ("kat-default-web-ab12c_init-wait.container", "rabbit"),
        ("kat-default-web-ab12c_side-proxy.container", "hare"),
        ("kat-default-web-ab12c_side-logs.container", "web-ab12c"),
    ] {
        assert_eq!(keys(file, "HostName"), [host_name], "{file}");
        assert!(keys(file, "AddHost").is_empty(), "{file}");
    }
}

#[test]
fn what_is_of_the_machine_starts_with_the_agent_alone() {
    let changes: [fn(&mut Container); 3] = [
        |container| container.devices.push("/dev/ttyUSB0".to_owned()),
        |container| container.groups.push("dialout".to_owned()),
        |container| container.host_network = true,
    ];
    assert_eq!(lines(&render(&assignment()).unwrap(), "WantedBy").len(), 1);
    for change in changes {
        let mut assignment = assignment();
        change(&mut assignment.container);
        let files = render(&assignment).unwrap();
        assert!(lines(&files, "WantedBy").is_empty(), "{files:?}");
    }
}

#[test]
fn a_value_can_not_add_a_line() {
    let changes: [fn(&mut Container); 7] = [
        |container| {
            let value = "nofile=1\nPodmanArgs=--privileged".to_owned();
            container.quadlet.insert("Ulimit".to_owned(), value);
        },
        |container| container.user = Some("0\nPrivileged=true".to_owned()),
        |container| container.working_dir = Some("/a\n[Service]".to_owned()),
        |container| container.stop_signal = Some("TERM\nX=1".to_owned()),
        |container| container.tmpfs = vec!["/a\nVolume=/:/host".to_owned()],
        |container| container.cap_add = vec!["NET_RAW --privileged".to_owned()],
        |container| container.name = Some("a\0".to_owned()),
    ];
    for change in changes {
        let mut assignment = assignment();
        change(&mut assignment.container);
        assert!(matches!(
            render(&assignment),
            Err(RenderError::Template { .. })
        ));
    }
}

#[test]
fn images_are_pulled_apart() {
    let renderer = Renderer::new(None).unwrap();
    let settings = RenderSettings::default();
    let image = |image: &str, policy: Option<ImagePullPolicy>| {
        let mut assignment = assignment();
        assignment.image = image.to_owned();
        assignment.container.image_pull_policy = policy;
        renderer
            .image(&assignment, &settings, assignment.logins.is_some())
            .unwrap()
    };
    let missing = image("registry.lab:5000/web:1", None).unwrap();
    assert_eq!(missing.name, "kat-image-20000-69717cfc8b.image");
    assert_eq!(
        missing.service().as_deref(),
        Some("kat-image-20000-69717cfc8b-image.service")
    );
    assert!(missing.text.contains("ExecCondition="));
    for always in ["web", "registry.lab:5000/web", "web:latest"] {
        let file = image(always, None).unwrap();
        assert!(
            file.name.ends_with("-always.image"),
            "{always}: {}",
            file.name
        );
        assert!(!file.text.contains("ExecCondition="));
    }
    let digest = format!("web@sha256:{}", "a".repeat(64));
    assert!(!image(&digest, None).unwrap().name.contains("always"));
    assert!(image("web", Some(ImagePullPolicy::Never)).is_none());

    let files = render(&assignment()).unwrap();
    assert_eq!(lines(&files, "Pull"), ["never"]);
    assert!(
        !files[0].text.contains("-image.service"),
        "the start waits for the pull"
    );
}

#[test]
fn units_of_two_users_with_one_image_have_two_names() {
    let mut others = assignment();
    others.user = WorkloadUser::from_index(1, "default", "other").unwrap();
    let renderer = Renderer::new(None).unwrap();
    let name = |assignment: &Assignment| {
        let file = renderer.image(assignment, &RenderSettings::default(), false);
        file.unwrap().unwrap().name
    };
    assert_eq!(name(&assignment()), "kat-image-20000-69717cfc8b.image");
    assert_eq!(name(&others), "kat-image-20001-69717cfc8b.image");
}

#[test]
fn images_that_the_generator_misreads_are_refused_or_named_in_full() {
    let mut assignment = assignment();
    for image in ["--privileged", "a b", "", "web:1.build"] {
        assignment.image = image.to_owned();
        assert!(
            matches!(render(&assignment), Err(RenderError::Image { .. })),
            "{image}"
        );
    }
    assignment.image = "registry.lab:5000/web.image".to_owned();
    let files = render(&assignment).unwrap();
    assert_eq!(
        lines(&files, "Image"),
        ["registry.lab:5000/web.image:latest"]
    );
}

#[test]
fn host_files_say_what_the_hook_needs() {
    let renderer = Renderer::new(None).unwrap();
    let files = renderer.host_files(&RenderSettings::default()).unwrap();
    let hook = files
        .iter()
        .find(|file| file.path.ends_with("kat.json"))
        .unwrap();
    let hook: serde_json::Value = serde_json::from_str(&hook.text).unwrap();
    assert_eq!(hook["hook"]["args"], serde_json::json!(["kat-net", "hook"]));
    // The hook times out before the runtime does, so that its reason reaches the journal.
    assert_eq!(hook["hook"]["timeout"], 85);
    assert_eq!(hook["hook"]["env"][0], "KAT_HOOK_TIMEOUT=83");
    assert_eq!(
        hook["when"]["annotations"]["^rip\\.dws\\.kat\\.instance$"],
        ".+"
    );
    assert_eq!(hook["stages"], serde_json::json!(["createRuntime"]));
}

#[test]
fn containers_ask_this_machine_for_names() {
    let renderer = Renderer::new(None).unwrap();
    let settings = RenderSettings::default();
    let address = Ipv4Addr::new(10, 100, 0, 1);
    for (search, line) in [
        (
            NameSearch::Cluster,
            "search shop.kat.cluster.local kat.cluster.local\n",
        ),
        (NameSearch::OwnNamespace, "search shop.kat.cluster.local\n"),
    ] {
        let file = renderer
            .resolv_conf("shop", "kat.cluster.local", address, search, &settings)
            .unwrap();
        assert_eq!(file.path, Path::new("/var/lib/kat/resolv/shop.conf"));
        let expected = format!("nameserver 10.100.0.1\n{line}");
        assert!(file.text.contains(&expected), "{}", file.text);
    }
}

#[test]
fn the_store_has_certificates_on_both_sides() {
    let renderer = Renderer::new(None).unwrap();
    let unit = EtcdUnit::new(
        "n1",
        Ipv4Addr::new(10, 100, 0, 1),
        2379,
        2380,
        "/var/lib/kat/pki",
    );
    let text = renderer.etcd(&unit).unwrap().text;
    for part in [
        "--client-cert-auth=true",
        "--peer-client-cert-auth=true",
        "--listen-client-urls=https://127.0.0.1:2379,https://10.100.0.1:2379",
        "--listen-peer-urls=https://10.100.0.1:2380 ",
        "User=kat-etcd\n",
        "ReadWritePaths=/var/lib/kat/etcd\n",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("http://"));
    assert!(
        !text.contains("ExecCondition"),
        "it starts for the first time"
    );
    let unit = EtcdUnit {
        keeps_data: true,
        ..unit
    };
    let text = renderer.etcd(&unit).unwrap().text;
    let condition =
        "\nExecCondition=/usr/bin/test -e /var/lib/kat/etcd/member/wal\nExecStart=/usr/bin/etcd ";
    assert!(text.contains(condition), "{text}");
}

#[test]
fn a_job_whose_machine_keeps_its_schedule_asks_its_gate_before_each_run() {
    let mut one = assignment();
    one.workload_type = WorkloadType::Job;
    one.restart_policy.condition = RestartCondition::Never;
    assert_eq!(lines(&render(&one).unwrap(), "RemainAfterExit"), ["yes"]);
    one.bound = Some(BoundSchedule {
        deadline_seconds: Some(90),
        ..BoundSchedule::default()
    });
    let files = render(&one).unwrap();
    assert!(lines(&files, "RemainAfterExit").is_empty());
    assert_eq!(lines(&files, "RuntimeMaxSec"), ["90"]);
    let paths = "/var/lib/kat/units/20000/kat-default-web-ab12c.times /var/lib/kat/job-runs/20000/web-ab12c";
    let begin = format!("/usr/libexec/kat/kat-net run-gate begin {paths}");
    let conditions = lines(&files, "ExecCondition");
    assert_eq!(conditions.last(), Some(&begin.as_str()));
    let end = format!("/usr/libexec/kat/kat-net run-gate end {paths}");
    assert_eq!(lines(&files, "ExecStopPost"), [end.as_str()]);
}

#[test]
fn a_timer_has_a_line_for_each_time() {
    let renderer = Renderer::new(None).unwrap();
    let times = ["2026-11-30 12:00:00 UTC", "2026-11-30 12:01:00 UTC"];
    let text = renderer.timer(&assignment(), times.map(str::to_owned).to_vec());
    let text = text.unwrap();
    let (_, timer) = text.split_once("[Timer]\n").unwrap();
    assert_eq!(
        timer,
        "Unit=kat-default-web-ab12c.service\nAccuracySec=1s\nOnCalendar=2026-11-30 12:00:00 UTC\nOnCalendar=2026-11-30 12:01:00 UTC\n"
    );
}
