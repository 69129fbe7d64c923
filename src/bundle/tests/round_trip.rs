//! Every valid workload that is printed is read back as equal, and no text makes the reader panic.

use std::collections::BTreeMap;

use proptest::{collection, option, prelude::*, sample::select};

use super::*;
use kat_types::resource::*;

fn name() -> impl Strategy<Value = String> {
    "[a-z]([a-z0-9-]{0,10}[a-z0-9])?"
}

/// Texts that YAML could read as another type.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "",
            "true",
            "null",
            "~",
            "1.10",
            "on",
            "010",
            "0x1f",
            "- a",
            "a: b",
            "# c",
            "*a",
            "&a",
            "!t",
            "%",
            "\t",
            " x ",
            "a\nb\n",
            "\u{e9}\u{1f600}",
            "'",
            "\"",
            "{",
            "]",
            "<<",
            "|",
            ">-"
        ])
        .prop_map(str::to_owned),
        "[ -~äß€]{0,20}",
        "(\\PC|\n){0,20}",
    ]
    .prop_filter("no control characters", |text| {
        !text
            .chars()
            .any(|letter| letter.is_control() && letter != '\n' && letter != '\t')
    })
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    collection::btree_map(
        "([a-z]{1,5}\\.[a-z]{2}/)?[a-zA-Z][a-z0-9]{0,8}",
        "[a-z0-9]{0,8}",
        0..3,
    )
}

fn amounts() -> impl Strategy<Value = ResourceList> {
    (option::of(1u64..100_000), option::of(1u64..1 << 40)).prop_map(|(cpu, memory)| ResourceList {
        cpu: cpu.map(MilliCpu),
        memory: memory.map(|size| Bytes(size | 1 << 20)),
        storage: None,
    })
}

fn environment() -> impl Strategy<Value = Vec<EnvVar>> {
    collection::btree_map(
        "[A-Z_][A-Z0-9_]{0,8}",
        (text(), any::<bool>(), name()),
        0..4,
    )
    .prop_map(|variables| {
        let variable = |(name, (text, secret, other)): (String, (String, bool, String))| {
            let source = EnvVarSource {
                secret: SecretKeyRef {
                    name: other,
                    key: "KEY".to_owned(),
                },
            };
            EnvVar {
                name,
                value: (!secret).then_some(text),
                value_from: secret.then_some(source),
            }
        };
        variables.into_iter().map(variable).collect()
    })
}

fn container() -> impl Strategy<Value = Container> {
    let texts = || collection::vec(text(), 0..3);
    (
        (
            option::of(name()),
            texts(),
            texts(),
            texts(),
            environment(),
            0u32..3600,
            0u32..3600,
        ),
        (
            option::of(select(vec!["SIGTERM", "SIGINT", "SIGRTMIN+3"])),
            option::of(select(vec!["0", "1000:1000", "nginx"])),
            option::of("/[a-z ]{1,8}"),
            any::<[bool; 4]>(),
            option::of(4096u64..1 << 40),
            option::of(select(vec![
                ImagePullPolicy::Always,
                ImagePullPolicy::IfNotPresent,
                ImagePullPolicy::Never,
            ])),
            amounts(),
            option::of(0u32..=1000),
        ),
    )
        .prop_map(
            |(
                (name, command, args, entrypoint, env, drain_seconds, grace),
                (signal, user, working_dir, flags, shm, image_pull_policy, limits, oom_score),
            )| Container {
                name,
                command,
                args,
                entrypoint,
                env,
                drain_seconds,
                termination_grace_seconds: grace,
                stop_signal: signal.map(str::to_owned),
                user: user.map(str::to_owned),
                hostname: flags[2].then(|| "rabbit".to_owned()),
                working_dir,
                cap_add: flags[0].then(|| "NET_RAW".to_owned()).into_iter().collect(),
                cap_drop: flags[1].then(|| "ALL".to_owned()).into_iter().collect(),
                tmpfs: flags[2].then(|| "/tmp".to_owned()).into_iter().collect(),
                shm_size: shm.map(Bytes),
                oom_score_adjust: oom_score,
                init: flags[3],
                read_only_rootfs: flags[0],
                host_network: flags[1],
                image_pull_policy,
                volume_mounts: flags[2]
                    .then(|| VolumeMount {
                        name: "data".to_owned(),
                        mount_path: "/data".to_owned(),
                        sub_path: flags[3].then(|| "a/b".to_owned()),
                        read_only: flags[0],
                    })
                    .into_iter()
                    .collect(),
                resources: Resources {
                    requests: limits,
                    limits,
                    gpu: flags[3].then(|| GpuRequest {
                        driver: GpuDriver::Nvidia,
                        min_vram_mb: flags[0].then_some(4096),
                    }),
                },
                ..Container::default()
            },
        )
}

/// An init container or sidecar.
fn beside(number: usize, container: Container) -> Container {
    let mounts = container.volume_mounts.iter();
    let volume_mounts = mounts.map(|mount| VolumeMount {
        sub_path: None,
        read_only: true,
        ..mount.clone()
    });
    Container {
        name: Some(format!("beside-{number}")),
        image: (number == 0).then(|| "registry.example/beside:1".to_owned()),
        volume_mounts: volume_mounts.collect(),
        drain_seconds: 5,
        host_network: false,
        ..container
    }
}

fn workloads() -> impl Strategy<Value = Workload> {
    (
        (
            name(),
            name().prop_filter("reserved", |name| name != "node"),
            labels(),
            labels(),
        ),
        (
            0u32..1000,
            any::<bool>(),
            0u32..=100,
            1u32..86_400,
            any::<bool>(),
        ),
        (
            select(vec![
                RestartCondition::Never,
                RestartCondition::MaxCount,
                RestartCondition::Always,
            ]),
            0u32..1000,
            1u32..100_000,
        ),
        container(),
        collection::vec(container(), 0..2),
        collection::vec(
            option::of(select(vec![
                TaintEffect::NoSchedule,
                TaintEffect::PreferNoSchedule,
            ])),
            0..3,
        ),
    )
        .prop_map(
            |(
                (name, namespace, labels, selector),
                (replicas, percent, surge, deadline, flag),
                (condition, max_restarts, reset_seconds),
                main,
                sidecars,
                effects,
            )| Workload {
                metadata: WorkloadMetadata {
                    name,
                    namespace,
                    labels,
                },
                spec: WorkloadSpec {
                    kind: if flag {
                        WorkloadType::DaemonService
                    } else {
                        WorkloadType::Service
                    },
                    source: Source {
                        image: Some("registry.lab:5000/web:1".to_owned()),
                        ..Source::default()
                    },
                    replicas: Some(replicas),
                    update_strategy: UpdateStrategy {
                        kind: if flag {
                            UpdateStrategyType::Simultaneous
                        } else {
                            UpdateStrategyType::Rolling
                        },
                        rolling: RollingUpdate {
                            max_surge: match (flag, percent) {
                                // A daemon has one instance on each machine.
                                (true, _) => MaxSurge::Count(surge % 2),
                                (false, true) => MaxSurge::Percent(surge),
                                (false, false) => MaxSurge::Count(surge),
                            },
                            max_unavailable: match (flag, percent) {
                                (true, true) => MaxSurge::Percent(25),
                                (true, false) => MaxSurge::Count(3),
                                (false, _) => MaxSurge::default(),
                            },
                        },
                        progress_deadline_seconds: deadline,
                        auto_rollback: flag,
                    },
                    restart_policy: RestartPolicy {
                        condition,
                        max_restarts,
                        reset_seconds,
                    },
                    on_node_loss: flag.then_some(OnNodeLoss::Keep),
                    on_partition: OnPartition::Stop,
                    spread: flag.then(|| Spread {
                        topology_key: "zone".to_owned(),
                        required: percent,
                        max_per_domain: percent.then_some(2),
                    }),
                    anti_affinity: Vec::new(),
                    affinity: Vec::new(),
                    node_selector: selector,
                    tolerations: effects
                        .into_iter()
                        .map(|effect| Toleration {
                            key: "dedicated".to_owned(),
                            operator: if percent {
                                TolerationOperator::Equal
                            } else {
                                TolerationOperator::Exists
                            },
                            value: percent.then(|| "db".to_owned()),
                            effect,
                        })
                        .collect(),
                    container: main,
                    init_containers: Vec::new(),
                    sidecars: sidecars
                        .into_iter()
                        .enumerate()
                        .map(|(number, one)| beside(number, one))
                        .collect(),
                    volumes: vec![Volume {
                        name: "data".to_owned(),
                        simple_cluster_storage: Some(SimpleClusterStorage {}),
                        host_mount: None,
                        files: None,
                        secret: None,
                        tmpfs: None,
                        per_replica: true,
                        reclaim: ReclaimPolicy::Delete,
                    }],
                    ports: Vec::new(),
                    start_after: flag
                        .then(|| StartAfter {
                            workload: "db".to_owned(),
                            condition: StartCondition::Completed,
                            timeout_seconds: 60,
                            on_timeout: OnStartTimeout::Start,
                        })
                        .into_iter()
                        .collect(),
                    machine_access: flag.then(|| "api".to_owned()).into_iter().collect(),
                },
            },
        )
}

/// Prints a value in YAML's block style, with every text in double quotes.
fn block(value: &Value, indent: usize, out: &mut String) {
    let pad = "  ".repeat(indent);
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                out.push_str(&format!("\n{pad}{}:", Value::from(name.as_str())));
                block(member, indent + 1, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&format!("\n{pad}-"));
                block(item, indent + 1, out);
            }
        }
        other => out.push_str(&format!(" {other}")),
    }
}

fn document(workload: &Workload) -> Value {
    let mut value = serde_json::to_value(workload).unwrap();
    value["apiVersion"] = json!("kat.dws.rip/v1alpha1");
    value["kind"] = json!("Workload");
    value
}

/// The number of cases; `PROPTEST_CASES` sets another one for a longer run.
fn cases() -> u32 {
    let wanted = std::env::var("PROPTEST_CASES").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(96)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_workload_is_read_as_the_same(workload in workloads()) {
        let value = document(&workload);
        let mut text = String::new();
        block(&value, 0, &mut text);
        for text in [text, serde_json::to_string_pretty(&value).unwrap()] {
            let files = [SourceFile { name: "workload.kat".to_owned(), text }];
            for mode in [DecodeMode::Strict, DecodeMode::Stored] {
                let read = parse(&files, mode);
                let read = read.map_err(|found| TestCaseError::fail(lines(&found)))?;
                // `Debug` omits the values of variables, so the JSON is compared too.
                prop_assert_eq!(
                    serde_json::to_value(read.workload.as_ref().unwrap()).unwrap(),
                    serde_json::to_value(&workload).unwrap()
                );
                prop_assert_eq!(read.workload.as_ref(), Some(&workload));
            }
        }
    }

    #[test]
    fn equal_workloads_have_equal_hashes(one in workloads(), other in workloads()) {
        let of = |workload: &Workload| Bundle { workload: Some(workload.clone()), ..Bundle::default() };
        prop_assert_eq!(spec_hash(&of(&one)), spec_hash(&of(&one)));
        prop_assert_eq!(one == other, spec_hash(&of(&one)) == spec_hash(&of(&other)));
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "(\\PC|[\n\t:#&*!|>'\"{}\\[\\],? -]){0,200}") {
        let files = [SourceFile { name: "workload.kat".to_owned(), text }];
        if let Err(found) = parse(&files, DecodeMode::Strict) {
            prop_assert!(!found.is_empty());
            for found in &found {
                let shown = render(found, &files[0].text, true);
                prop_assert!(shown.contains("error"));
            }
        }
        let _ = parse_cluster(&files[0].text, "cluster.kat");
        let _ = parse_agent_config(&files[0].text, "agent.yaml");
    }

    #[test]
    fn no_change_of_a_document_makes_the_reader_panic(
        workload in workloads(), at in any::<prop::sample::Index>(), with in "[\\PC\n]{0,3}", cut in 0usize..9
    ) {
        let mut text = String::new();
        block(&document(&workload), 0, &mut text);
        let mut letters: Vec<char> = text.chars().collect();
        let from = at.index(letters.len());
        let to = (from + cut).min(letters.len());
        letters.splice(from..to, with.chars());
        let files = [SourceFile { name: "workload.kat".to_owned(), text: letters.into_iter().collect() }];
        for mode in [DecodeMode::Strict, DecodeMode::Stored] {
            if let Err(found) = parse(&files, mode) {
                prop_assert!(!found.is_empty());
            }
        }
        // An agent of a later version can read everything that users may write today.
        if parse(&files, DecodeMode::Strict).is_ok() {
            prop_assert!(parse(&files, DecodeMode::Stored).is_ok());
        }
    }

    #[test]
    fn no_bytes_make_the_archive_reader_panic(bytes in collection::vec(any::<u8>(), 0..600), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let _ = read_archive(&bytes);
        let files = [file("workload.kat", &super::workload())];
        let mut packed = pack(&files).unwrap();
        let index = at.index(packed.len());
        packed[index] = byte;
        if let Ok(read) = read_archive(&packed) {
            prop_assert!(read.len() <= MAX_FILES);
        }
    }
}
