//! The places of `workload.kat` that name an image.

use super::{
    CARRIED, DocumentKind, SourceFile,
    diagnostic::{Class, Diagnostic},
    yaml::{self, YamlNode, YamlValue, item_path, key_path, locate},
};

/// A diagnostic for each place that names `image`; one for the whole file if no place is found.
pub fn image_places(
    files: &[SourceFile],
    image: &str,
    message: &str,
    hint: &str,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.name != CARRIED) {
        for root in &yaml::read(&file.name, &file.text, &mut Vec::new()).roots {
            for path in image_paths(root) {
                let node = locate(root, &path).map(|(node, _)| node);
                let named = node.filter(
                    |node| matches!(&node.value, YamlValue::Scalar { text, .. } if text == image),
                );
                found.extend(named.map(|node| {
                    Diagnostic::at(Class::Range, &file.name, node.span, message)
                        .path(path)
                        .hint(hint)
                }));
            }
        }
    }
    if found.is_empty() {
        let diagnostic = Diagnostic::of_file(Class::Range, "workload.kat", message);
        found.push(diagnostic.hint(hint));
    }
    found
}

/// The paths of a document at which an image can be, if the document is a workload.
fn image_paths(root: &YamlNode) -> Vec<String> {
    let kind = match locate(root, "kind").map(|(node, _)| &node.value) {
        Some(YamlValue::Scalar { text, .. }) => DocumentKind::from_word(text),
        _ => None,
    };
    if kind != Some(DocumentKind::Workload) {
        return Vec::new();
    }
    let others = ["spec.initContainers", "spec.sidecars"];
    let others = others.into_iter().flat_map(|list| {
        let count = match locate(root, list).map(|(node, _)| &node.value) {
            Some(YamlValue::Sequence(items)) => items.len(),
            _ => 0,
        };
        (0..count).map(move |index| key_path(&item_path(list, index), "image"))
    });
    std::iter::once("spec.source.image".to_owned())
        .chain(others)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_that_names_the_image_is_found() {
        let text = "kind: Workload\nspec:\n  source:\n    image: \"nginx:1\"\n  \
                    initContainers:\n  - {name: a, image: other:1}\n  - {name: b, image: nginx:1}\n  \
                    sidecars:\n  - name: c\n    image: nginx:1\n  - name: d\n";
        let file = |name: &str, text: &str| SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let balancer = "kind: VirtualLoadBalancer\nspec: {source: {image: nginx:1}}\n";
        let files = [
            file("VirtualLoadBalancer.kat", balancer),
            file("workload.kat", text),
        ];
        let shown = |image: &str| -> Vec<String> {
            let found = image_places(&files, image, "no such image", "push it");
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            shown("nginx:1"),
            [
                "workload.kat:4:12: spec.source.image: no such image (push it)",
                "workload.kat:7:22: spec.initContainers[1].image: no such image (push it)",
                "workload.kat:10:12: spec.sidecars[0].image: no such image (push it)",
            ]
        );
        assert_eq!(shown("none:1"), ["workload.kat: no such image (push it)"]);
    }
}
