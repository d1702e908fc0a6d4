//! The file of the report. A file of another author is not touched.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use egret_policies::api::manifest::{self, Manifest};
use egret_policies::api::{Kind, Object};

/// This label says who wrote a report (kubernetes.io, Recommended Labels).
const LABEL: &str = "app.kubernetes.io/managed-by";
const OURS: &str = "egret-enforcer";

/// Why the report is missing or outdated.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    #[error("{0} was not written by an enforcer: it stays as it is; remove it to have this node reported")]
    NotOurs(PathBuf),
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

/// The report file of a node.
#[derive(Debug)]
pub(super) struct ReportFile {
    folder: PathBuf,
    node: String,
    path: PathBuf,
}

impl ReportFile {
    pub(super) fn new(folder: PathBuf, node: &str) -> Self {
        Self {
            path: folder.join(format!("node-address-report-{node}.yaml")),
            node: node.to_owned(),
            folder,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the report if it differs. Returns whether it did.
    pub(super) fn write(&self, addresses: &BTreeMap<IpAddr, String>) -> Result<bool, ReportError> {
        let text = self.render(addresses);
        let there = read(&self.path).map_err(|error| self.failed(error))?;
        if let Some(there) = &there {
            if there == text.as_bytes() {
                return Ok(false);
            }
            if !self.is_ours(there) {
                return Err(ReportError::NotOurs(self.path.clone()));
            }
        }
        if let Some(other_report) = self.other_report().map_err(|error| self.failed(error))? {
            return Err(ReportError::NotOurs(other_report));
        }
        self.replace(&text).map_err(|error| self.failed(error))?;
        Ok(true)
    }

    /// Another file in the folder that reports this node's addresses.
    fn other_report(&self) -> io::Result<Option<PathBuf>> {
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let is_manifest = ["yaml", "yml", "json"].map(Some);
            let extension = path.extension().and_then(|extension| extension.to_str());
            let is_other = path != self.path && is_manifest.contains(&extension);
            // Invalid files report nothing; the source logs them.
            if is_other
                && let Ok(Some(octets)) = read(&path)
                && read_as_manifest(&octets).is_some_and(|manifest| self.is_in(&manifest))
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn is_in(&self, manifest: &Manifest) -> bool {
        let mut documents = manifest.documents.iter();
        documents.any(|document| self.is_of_node(&document.object))
    }

    fn is_of_node(&self, object: &Object) -> bool {
        object.kind == Kind::NodeAddressReport && *object.metadata.name == *self.node
    }

    /// Whether a file holds exactly one report, of this node and with our label.
    fn is_ours(&self, octets: &[u8]) -> bool {
        read_as_manifest(octets).is_some_and(|manifest| match manifest.documents.as_slice() {
            [document] if manifest.is_whole() => {
                self.is_of_node(&document.object) && document.object.metadata.labels.get(LABEL) == Some(OURS)
            }
            _ => false,
        })
    }

    fn render(&self, addresses: &BTreeMap<IpAddr, String>) -> String {
        let node = quoted(&self.node);
        let mut text = format!(
            "# All addresses of the node, as its enforcer sees them. It writes this anew when they change.\n\
             apiVersion: policy.egret.dev/v1alpha1\nkind: NodeAddressReport\n\
             metadata:\n  name: {node}\n  labels:\n    {LABEL}: {OURS}\naddresses:\n"
        );
        for (address, interface) in addresses {
            let interface = quoted(interface);
            writeln!(text, "- {{ip: \"{address}\", interface: {interface}}}")
                .expect("a String takes any text");
        }
        text
    }

    /// Replaces the file atomically, readable by all.
    fn replace(&self, text: &str) -> io::Result<()> {
        let new = self
            .folder
            .join(format!(".node-address-report-{}.new", self.node));
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)
    }

    fn failed(&self, error: io::Error) -> ReportError {
        ReportError::Io {
            path: self.path.clone(),
            error,
        }
    }
}

/// Reads a regular file; none if there is none. Any other kind of file is not ours and counts as empty.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(there) if there.is_file() => {}
        Ok(_) => return Ok(Some(Vec::new())),
    }
    let most = u64::try_from(manifest::MAX_BYTES).map_err(io::Error::other)?;
    let mut octets = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut octets)?;
    Ok(Some(octets))
}

/// None if the text does not name the kind: parsing all manifests of a large cluster is slow.
fn read_as_manifest(octets: &[u8]) -> Option<Manifest> {
    let kind = b"NodeAddressReport";
    let is_named = octets.windows(kind.len()).any(|part| part == kind);
    is_named.then(|| manifest::read_octets(octets, "a report"))
}

/// A JSON string is a YAML string.
fn quoted(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_policies::lower::lower;
    use egret_policies::model::cluster::Entity;
    use std::os::unix::fs::MetadataExt;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self) -> ReportFile {
            ReportFile::new(self.0.path().to_owned(), "node-1")
        }
    }

    fn addresses(list: &[&str]) -> BTreeMap<IpAddr, String> {
        let each = list.iter().map(|ip| (ip.parse().unwrap(), "eth\": 0".to_owned()));
        each.collect()
    }

    #[test]
    fn what_is_written_is_read_as_the_report_of_the_node_and_written_once() {
        let folder = Folder::new();
        let file = folder.file();
        let wanted = addresses(&["10.0.0.1", "fd00::1"]);
        assert!(file.write(&wanted).unwrap());
        let read = manifest::read_octets(&std::fs::read(file.path()).unwrap(), "test");
        assert!(read.is_whole(), "{:?}", read.problems);
        let lowered = lower(&read.documents[0].object);
        assert!(lowered.diagnostics.is_empty(), "{:?}", lowered.diagnostics);
        let [Entity::NodeAddressReport(report)] = lowered.entities.as_slice() else {
            panic!("{:?}", lowered.entities)
        };
        assert_eq!(&*report.node, "node-1");
        assert!(report.addresses.iter().eq(wanted.keys()));
        let inode = || std::fs::metadata(file.path()).unwrap().ino();
        let first = inode();
        assert!(!file.write(&wanted).unwrap());
        assert_eq!(inode(), first);
        assert!(file.write(&addresses(&["10.0.0.2"])).unwrap());
        assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_others_wrote_stays_as_it_is() {
        let report = |name: &str, labels: &str| {
            format!(
                "apiVersion: policy.egret.dev/v1alpha1\nkind: NodeAddressReport\nmetadata: {{name: {name}, labels: {{{labels}}}}}\naddresses: [{{ip: 192.0.2.1}}]\n"
            )
        };
        let ours = "app.kubernetes.io/managed-by: egret-enforcer";
        let own = "node-address-report-node-1.yaml";
        let table = [
            ("no marker", own, report("node-1", ""), false),
            (
                "another's",
                own,
                report("node-1", "app.kubernetes.io/managed-by: me"),
                false,
            ),
            ("another node's", own, report("node-2", ours), false),
            (
                "more than ours",
                own,
                report("node-1", ours) + "---\n" + &report("node-2", ours),
                false,
            ),
            (
                "unreadable",
                own,
                report("node-1", ours) + "---\nkind: [\n",
                false,
            ),
            ("empty", own, String::new(), false),
            (
                "in another file",
                "nodes.yml",
                report("node-2", "") + "---\n" + &report("node-1", ""),
                false,
            ),
            ("of another node", "nodes.yml", report("node-2", ""), true),
            ("ours", own, report("node-1", ours), true),
        ];
        for (case, name, text, is_written) in table {
            let folder = Folder::new();
            std::fs::write(folder.0.path().join(name), &text).unwrap();
            let written = folder.file().write(&addresses(&["10.0.0.1"]));
            assert_eq!(written.is_ok(), is_written, "{case}: {written:?}");
            let there = std::fs::read_to_string(folder.0.path().join(name)).unwrap();
            assert_eq!(there == text, !is_written || name != own, "{case}");
            assert_eq!(folder.file().path().exists(), is_written || name == own, "{case}");
        }
    }

    #[test]
    fn a_link_in_its_place_is_not_followed_and_not_replaced() {
        let folder = Folder::new();
        let elsewhere = folder.0.path().join("elsewhere");
        std::fs::write(&elsewhere, "x").unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.file().path()).unwrap();
        assert!(matches!(
            folder.file().write(&addresses(&["10.0.0.1"])),
            Err(ReportError::NotOurs(_))
        ));
        assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "x");
        assert!(folder.file().path().is_symlink());
    }
}
