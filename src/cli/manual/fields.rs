//! workload.kat(5), cluster.kat(5) and agent.yaml(5), from the table of fields.

use super::{Block, ManualPage, Section};
use kat_bundle::{
    DocumentKind,
    fields::{self, Field, FieldStatus, FieldType},
};

const WORKLOAD_EXAMPLE: &str = "\
# workload.kat
apiVersion: kat.dws.rip/v1alpha1
kind: Workload
metadata:
  name: web
spec:
  source:
    image: docker.io/library/nginx:1.27
  replicas: 2
  ports:
    - {name: web, containerPort: 80}";

const CLUSTER_EXAMPLE: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: ClusterConfiguration
metadata:
  name: home
spec:
  clusterCIDR: 10.100.0.0/16
  serviceCIDR: 10.200.0.0/16";

const AGENT_EXAMPLE: &str = "\
reserved:
  cpu: 200m
  memory: 256Mi
hostMountAllow: [/srv]
hostPortsAllow: [80, 443]";

/// The pages of the three kinds of files that a person writes.
pub(super) fn pages() -> Vec<ManualPage> {
    vec![agent(), cluster(), workload()]
}

fn workload() -> ManualPage {
    let mut blocks = vec![
        Block::heading("Description"),
        Block::paragraph(
            "A folder of `*.kat` files describes one workload. `katcall apply -f FOLDER` checks the files and sends \
             them to the cluster; `katcall plan -f FOLDER` shows what would change. The files are YAML, and each has \
             one document with a `kind`. A field that is not listed here is an error.",
        ),
        Block::paragraph(
            "`workload.kat` is required. The other files are optional. Further files of the folder can be mounted \
             into its containers.",
        ),
        Block::paragraph(
            "Below, `[]` stands for each item of a list. Fields without \"required\" can be left out.",
        ),
    ];
    for kind in DocumentKind::IN_BUNDLE {
        blocks.push(Block::heading(kind.file()));
        blocks.extend(entries(kind));
    }
    blocks.push(Block::heading("Example"));
    blocks.push(Block::Example(WORKLOAD_EXAMPLE.to_owned()));
    blocks.push(Block::heading("See also"));
    blocks.push(Block::paragraph(
        "katcall(1), katcall-apply(1), katcall-explain(1), cluster.kat(5), kat-reasons(7)",
    ));
    ManualPage {
        name: "workload.kat".to_owned(),
        section: Section::FileFormats,
        about: "files that describe a workload of KAT".to_owned(),
        blocks,
    }
}

fn cluster() -> ManualPage {
    let mut blocks = vec![
        Block::heading("Description"),
        Block::paragraph(
            "`kat-agent init --config FILE` reads the settings of a new cluster from this file. Without the option \
             every setting has its default. A setting that is \"fixed at init\" cannot be changed later; \
             `katcall config set` changes the others.",
        ),
        Block::heading("Fields"),
    ];
    blocks.extend(entries(DocumentKind::ClusterConfiguration));
    blocks.push(Block::heading("Example"));
    blocks.push(Block::Example(CLUSTER_EXAMPLE.to_owned()));
    blocks.push(Block::heading("See also"));
    blocks.push(Block::paragraph(
        "kat-agent(8), kat-agent-init(8), agent.yaml(5)",
    ));
    ManualPage {
        name: "cluster.kat".to_owned(),
        section: Section::FileFormats,
        about: "settings of a new cluster of KAT".to_owned(),
        blocks,
    }
}

fn agent() -> ManualPage {
    let mut blocks = vec![
        Block::heading("Synopsis"),
        Block::paragraph("`/etc/kat/agent.yaml`"),
        Block::heading("Description"),
        Block::paragraph(
            "Settings of one machine. The file is optional. `kat-agent` reads it when it starts; `kat-agent check` \
             reports its errors. Where this file and cluster.kat(5) name the same setting, this file counts on this \
             machine.",
        ),
        Block::heading("Fields"),
    ];
    blocks.extend(entries(DocumentKind::AgentConfig));
    blocks.push(Block::heading("Example"));
    blocks.push(Block::Example(AGENT_EXAMPLE.to_owned()));
    blocks.push(Block::heading("See also"));
    blocks.push(Block::paragraph(
        "kat-agent(8), cluster.kat(5), kat-files(7)",
    ));
    ManualPage {
        name: "agent.yaml".to_owned(),
        section: Section::FileFormats,
        about: "settings of one machine of KAT".to_owned(),
        blocks,
    }
}

fn entries(kind: DocumentKind) -> impl Iterator<Item = Block> {
    let fields = fields::all().filter(move |field| field.kind == kind);
    fields.map(entry)
}

fn entry(field: &Field) -> Block {
    let structure = matches!(
        field.value,
        FieldType::Mapping
            | FieldType::MappingOr(..)
            | FieldType::BooleanOrMapping
            | FieldType::List
            | FieldType::ListOf(_)
    );
    let mut kind = field.value.to_string();
    if field.required {
        kind.push_str(", required");
    }
    if let Some(default) = field.default.filter(|_| !structure) {
        kind.push_str(&format!(", default `{default}`"));
    }
    let mut paragraphs = vec![kind, sentence(field.description)];
    match field.status {
        FieldStatus::Identity | FieldStatus::Effective => {}
        FieldStatus::NotYet => paragraphs
            .push("Not supported yet: a value other than the default is refused.".to_owned()),
    }
    if !structure {
        paragraphs.push(format!("Example: `{}: {}`", field.name(), field.example));
    }
    Block::Entry {
        term: field.path.to_owned(),
        paragraphs,
    }
}

/// A description of the table as a sentence.
fn sentence(description: &str) -> String {
    let mut letters = description.chars();
    let first: String = letters
        .next()
        .map(|first| first.to_uppercase().collect())
        .unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_pages_are_accepted() {
        let file = kat_bundle::SourceFile {
            name: "workload.kat".to_owned(),
            text: WORKLOAD_EXAMPLE.to_owned(),
        };
        let bundle = kat_bundle::parse(&[file], kat_bundle::DecodeMode::Strict).unwrap();
        assert!(kat_bundle::not_yet(&bundle).is_empty());
        kat_bundle::parse_cluster(CLUSTER_EXAMPLE, "cluster.kat").unwrap();
        kat_bundle::parse_agent_config(AGENT_EXAMPLE, "agent.yaml").unwrap();
    }

    #[test]
    fn a_field_says_its_type_its_default_and_what_is_not_supported() {
        let found = |path: &str| {
            let field = fields::lookup(DocumentKind::Workload, path).unwrap();
            match entry(field) {
                Block::Entry { paragraphs, .. } => paragraphs.join("\n"),
                _ => String::new(),
            }
        };
        let grace = found("spec.container.terminationGraceSeconds");
        assert!(
            grace.starts_with("whole number, 0 to 3600, default `10`\n"),
            "{grace}"
        );
        assert!(found("spec.source.git.tag").contains("Not supported yet"));
        let kind = found("spec.type");
        assert!(
            kind.starts_with("Service | Job | DaemonService, default `Service`\n"),
            "{kind}"
        );
        assert!(!kind.contains("Not supported"), "{kind}");
    }
}
