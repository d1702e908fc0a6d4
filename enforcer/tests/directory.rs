//! A folder of manifests as its editors treat it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use egret_enforcer::engine::{Input, SourceState};
use egret_enforcer::watch::dir::Directory;
use egret_policies::compiler::Event;
use egret_policies::diagnostic::Severity;
use egret_policies::model::cluster::{Entity, EntityKey};
use tokio::sync::mpsc;

/// A folder that is watched.
struct Watched {
    root: PathBuf,
    inputs: mpsc::Receiver<Input>,
}

impl Watched {
    fn new(name: &str, prepare: impl FnOnce(&Path)) -> Self {
        let root = std::env::temp_dir().join(format!("egret-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&root));
        std::fs::create_dir_all(&root).unwrap();
        prepare(&root);
        let (engine, inputs) = mpsc::channel(64);
        let directory = Directory::new(root.join("m"));
        drop(egret_shared::rt::task::spawn("watch", directory.watch(engine)));
        Self { root, inputs }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.root.join("m").join(name), text).unwrap();
    }

    /// What is told until the source stands somewhere.
    async fn told(&mut self) -> (Vec<String>, SourceState) {
        let mut events = Vec::new();
        loop {
            let input = tokio::time::timeout(Duration::from_secs(5), self.inputs.recv()).await;
            match input.expect("the source says something within 5 s").unwrap() {
                Input::Cluster(more) => events.extend(more.iter().map(words)),
                Input::Source(state) => return (events, state),
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.root));
    }
}

fn words(event: &Event) -> String {
    let key = |key: &EntityKey| match key {
        EntityKey::Namespace(name) => name.to_string(),
        EntityKey::Policy(id) => id.to_string(),
        EntityKey::Pod(_)
        | EntityKey::Node(_)
        | EntityKey::Service(_)
        | EntityKey::EndpointSlice(_)
        | EntityKey::NodeAddressReport(_)
        | EntityKey::ApiServerAddresses(_) => format!("{key:?}"),
    };
    match event {
        Event::Apply(Entity::Namespace(namespace)) => {
            let labels: Vec<_> = namespace
                .labels
                .iter()
                .filter(|(name, _)| *name == "v")
                .map(|(_, value)| value.to_owned())
                .collect();
            format!("+{} {}", namespace.name, labels.join(","))
        }
        Event::Apply(entity) => format!("+{}", key(&entity.key())),
        Event::Delete(gone) => format!("-{}", key(gone)),
        Event::Observed(_) => "observed".to_owned(),
        Event::Restored(_) => "restored".to_owned(),
    }
}

fn namespace(name: &str, version: u32) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{v: \"{version}\"}}}}\n")
}

fn make_folder(root: &Path) {
    std::fs::create_dir(root.join("m")).unwrap();
}

#[tokio::test]
async fn files_come_change_and_go() {
    let mut watched = Watched::new("come", |root| {
        make_folder(root);
        std::fs::create_dir(root.join("m/below")).unwrap();
        std::fs::write(root.join("m/below/a.yml"), namespace("a", 1)).unwrap();
        std::fs::write(root.join("m/notes.txt"), "not a manifest: [").unwrap();
    });
    let (events, state) = watched.told().await;
    assert_eq!(
        (events, state.is_complete, state.files),
        (vec!["+a 1".to_owned()], true, 1)
    );
    watched.write(
        "b.json",
        r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}}"#,
    );
    assert_eq!(watched.told().await.0, ["+b "]);
    watched.write("below/a.yml", &namespace("a", 2));
    assert_eq!(watched.told().await.0, ["+a 2"]);
    std::fs::remove_file(watched.root.join("m/b.json")).unwrap();
    assert_eq!(watched.told().await.0, ["-b"]);
}

#[tokio::test]
async fn a_file_that_cannot_be_taken_leaves_what_it_said_in_force() {
    let mut watched = Watched::new("bad", |root| {
        make_folder(root);
        std::fs::write(root.join("m/a.yaml"), namespace("a", 1)).unwrap();
    });
    watched.told().await;
    watched.write("a.yaml", &(namespace("a", 2) + "---\nkind: [\n"));
    let (events, state) = watched.told().await;
    assert_eq!(events, Vec::<String>::new());
    assert!(
        state.is_complete && state.bad[0].contains("a.yaml:5"),
        "{:?}",
        state.bad
    );
    watched.write("a.yaml", &namespace("a", 3));
    let (events, state) = watched.told().await;
    assert_eq!((events, state.bad), (vec!["+a 3".to_owned()], Vec::new()));
}

fn policy(priority: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: p}}\n\
         spec: {{tier: Admin, priority: {priority}, subject: {{namespaces: {{}}}}}}\n"
    )
}

#[tokio::test]
async fn an_object_with_an_error_leaves_the_one_before_in_force_and_nothing_else() {
    let mut watched = Watched::new("unsound", |root| {
        make_folder(root);
        std::fs::write(root.join("m/a.yaml"), namespace("a", 1) + &policy("10")).unwrap();
    });
    assert_eq!(watched.told().await.0, ["+a 1", "+ClusterNetworkPolicy/p"]);
    watched.write("a.yaml", &(namespace("a", 2) + &policy("ten")));
    let (events, state) = watched.told().await;
    assert_eq!(events, ["+a 2"]);
    assert!(state.bad[0].contains("spec.priority"), "{:?}", state.bad);
    watched.write("a.yaml", &(namespace("a", 2) + &policy("11")));
    let (events, state) = watched.told().await;
    assert_eq!(
        (events, state.bad),
        (vec!["+ClusterNetworkPolicy/p".to_owned()], Vec::new())
    );
}

#[tokio::test]
async fn an_object_with_an_error_from_the_start_is_closed_rather_than_left_out() {
    let mut watched = Watched::new("unsound-first", |root| {
        make_folder(root);
        std::fs::write(root.join("m/a.yaml"), policy("ten")).unwrap();
    });
    let (events, state) = watched.told().await;
    assert_eq!(events, ["+ClusterNetworkPolicy/p"]);
    assert_eq!(state.diagnostics.get(&Severity::Error), Some(&1));
}

#[tokio::test]
async fn of_an_object_in_two_files_the_first_counts_until_it_goes() {
    let mut watched = Watched::new("twice", |root| {
        make_folder(root);
        std::fs::write(root.join("m/b.yaml"), namespace("a", 2)).unwrap();
        std::fs::write(root.join("m/a.yaml"), namespace("a", 1)).unwrap();
    });
    let (events, state) = watched.told().await;
    assert_eq!(events, ["+a 1"]);
    assert_eq!(state.diagnostics.values().sum::<usize>(), 1);
    std::fs::remove_file(watched.root.join("m/a.yaml")).unwrap();
    assert_eq!(watched.told().await.0, ["+a 2"]);
}

#[tokio::test]
async fn a_folder_that_is_swapped_by_a_link_is_read_again_as_a_whole() {
    let swap = |root: &Path, version: u32| {
        let data = root.join(format!("m/..{version}"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("a.yaml"), namespace("a", version)).unwrap();
        std::os::unix::fs::symlink(format!("..{version}"), root.join("m/..new")).unwrap();
        std::fs::rename(root.join("m/..new"), root.join("m/..data")).unwrap();
    };
    let mut watched = Watched::new("swap", |root| {
        make_folder(root);
        swap(root, 1);
        std::os::unix::fs::symlink("..data/a.yaml", root.join("m/a.yaml")).unwrap();
    });
    assert_eq!(watched.told().await.0, ["+a 1"]);
    swap(&watched.root, 2);
    assert_eq!(watched.told().await.0, ["+a 2"]);
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_says_nothing_is_gone() {
    let mut watched = Watched::new("gone", |_root| {});
    let (events, state) = watched.told().await;
    assert_eq!((events, state.is_complete), (Vec::new(), false));
    assert!(state.unreadable.unwrap().contains("No such file"));
    make_folder(&watched.root.clone());
    watched.write("a.yaml", &namespace("a", 1));
    // The folder may be seen before the file in it is.
    let mut events = watched.told().await.0;
    if events.is_empty() {
        events = watched.told().await.0;
    }
    assert_eq!(events, ["+a 1"]);
    std::fs::rename(watched.root.join("m"), watched.root.join("n")).unwrap();
    let (events, state) = watched.told().await;
    assert_eq!((events, state.is_complete), (Vec::new(), true));
    assert!(state.unreadable.is_some());
    std::fs::rename(watched.root.join("n"), watched.root.join("m")).unwrap();
    let (events, state) = watched.told().await;
    assert_eq!((events, state.unreadable), (Vec::new(), None));
}
