//! The folder of manifests that the enforcer watches: the world's own pods, namespaces and node, and the test's
//! policies.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::{Pod, WorldError, node};

/// The folder, and a place beside it where files are written before they appear in it.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
    staging: PathBuf,
}

impl Manifests {
    /// The file of the world's own node, namespaces and pods.
    pub(crate) const OF_WORLD: &str = "world.yaml";

    pub(crate) fn create(files: &Path) -> Result<Self, WorldError> {
        let manifests = Self {
            folder: files.join("manifests"),
            staging: files.join("staging"),
        };
        for folder in [&manifests.folder, &manifests.staging] {
            fs::create_dir_all(folder).map_err(WorldError::file(folder))?;
        }
        Ok(manifests)
    }

    /// For `--source dir:…`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes or replaces a file at once: a watcher never sees half of it.
    pub fn write(&self, name: &str, yaml: &str) -> Result<(), WorldError> {
        let (staged, path) = (self.staging.join(name), self.folder.join(name));
        fs::write(&staged, yaml).map_err(WorldError::file(&staged))?;
        fs::rename(&staged, &path).map_err(WorldError::file(&path))
    }

    pub fn remove(&self, name: &str) -> Result<(), WorldError> {
        let path = self.folder.join(name);
        fs::remove_file(&path).map_err(WorldError::file(&path))
    }

    /// Says which pods there are, as far as they are announced.
    pub(crate) fn describe<'a>(&self, pods: impl Iterator<Item = &'a Pod> + Clone) -> Result<(), WorldError> {
        let pods = pods.filter(|pod| pod.is_announced());
        let namespaces: BTreeSet<_> = pods.clone().map(|pod| pod.spec().namespace.as_str()).collect();
        let documents = std::iter::once(node_document())
            .chain(namespaces.into_iter().map(namespace_document))
            .chain(pods.map(pod_document));
        self.write(Self::OF_WORLD, &documents.collect::<Vec<_>>().join("---\n"))
    }
}

fn node_document() -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  labels:\n    kubernetes.io/hostname: {name}\n\
         status:\n  addresses:\n  - type: InternalIP\n    address: {v4}\n  - type: InternalIP\n    address: \"{v6}\"\n",
        name = node::NAME,
        v4 = node::ADDRESS,
        v6 = node::ADDRESS_V6,
    )
}

/// The label is the one that the API server puts on every namespace.
fn namespace_document(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  labels:\n    kubernetes.io/metadata.name: {name}\n"
    )
}

fn pod_document(pod: &Pod) -> String {
    let spec = pod.spec();
    let labels = spec.labels.iter().fold(String::new(), |mut text, (key, value)| {
        writeln!(text, "    {key}: \"{value}\"").expect("a String takes all that is written");
        text
    });
    let ports: Vec<_> = spec
        .ports
        .iter()
        .map(|(name, port)| format!("{{name: {name}, containerPort: {port}}}"))
        .collect();
    let [v4, v6] = pod.addresses();
    let status = format!(
        "status:\n  phase: Running\n  hostIP: {host}\n  podIP: {v4}\n  podIPs:\n  - ip: {v4}\n  - ip: \"{v6}\"\n",
        host = node::ADDRESS,
    );
    let status = if spec.in_status { status.as_str() } else { "" };
    let uid = if spec.mirrored {
        let annotations = ["hash", "mirror"].map(|key| format!("kubernetes.io/config.{key}: {}", pod.uid()));
        format!("of-the-mirror\n  annotations: {{{}}}", annotations.join(", "))
    } else {
        pod.uid().to_owned()
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  uid: {uid}\n\
         \x20 labels:\n{labels}\
         spec:\n  nodeName: {node}\n  containers:\n  - name: main\n    image: none.example/none\n\
         \x20   ports: [{ports}]\n{status}",
        name = spec.name,
        namespace = spec.namespace,
        node = node::NAME,
        ports = ports.join(", "),
    )
}
