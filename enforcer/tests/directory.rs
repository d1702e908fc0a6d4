//! A folder of manifests as its editors treat it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write as _;
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
        Event::NodeHolds(_) => "node holds".to_owned(),
        Event::NetworkAdded(_) | Event::NetworkRemoved(_) => "network".to_owned(),
    }
}

fn namespace(name: &str, version: u32) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{v: \"{version}\"}}}}\n")
}

fn make_folder(root: &Path) {
    std::fs::create_dir(root.join("m")).unwrap();
}

#[tokio::test]
async fn files_are_added_changed_and_removed() {
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

/// As the kubelet writes a ConfigMap anew.
fn swap(root: &Path, version: u32) {
    let data = root.join(format!("m/..{version}"));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("a.yaml"), namespace("a", version)).unwrap();
    std::os::unix::fs::symlink(format!("..{version}"), root.join("m/..new")).unwrap();
    std::fs::rename(root.join("m/..new"), root.join("m/..data")).unwrap();
}

#[tokio::test]
async fn a_folder_that_is_swapped_by_a_link_is_read_again_as_a_whole() {
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

fn rename(root: &Path, version: u32) {
    std::fs::write(root.join("m/.a.new"), namespace("a", version)).unwrap();
    std::fs::rename(root.join("m/.a.new"), root.join("m/a.yaml")).unwrap();
}

fn write_in_place(root: &Path, version: u32) {
    std::fs::write(root.join("m/a.yaml"), namespace("a", version)).unwrap();
}

type Change = fn(&Path, u32);

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
async fn what_is_whole_counts_at_once_however_it_came_to_be() {
    const TIMES: u32 = 100;
    let changes: [(&str, Change); 3] = [
        ("renamed", rename),
        ("written in place", write_in_place),
        ("swapped", swap),
    ];
    for (number, (name, change)) in changes.into_iter().enumerate() {
        let mut watched = Watched::new(&format!("at-once-{number}"), |root| {
            make_folder(root);
            if name == "swapped" {
                swap(root, 0);
                std::os::unix::fs::symlink("..data/a.yaml", root.join("m/a.yaml")).unwrap();
            } else {
                change(root, 0);
            }
        });
        assert_eq!(watched.told().await.0, ["+a 0"], "{name}");
        let mut took = Vec::new();
        for version in 1..=TIMES {
            let begun = std::time::Instant::now();
            change(&watched.root, version);
            assert_eq!(watched.told().await.0, [format!("+a {version}")], "{name}");
            took.push(begun.elapsed());
        }
        took.sort_unstable();
        let at = |part: usize| took[took.len() * part / 100];
        println!("{name}: median {:?}, p90 {:?}, p99 {:?}", at(50), at(90), at(99));
        // Without news none would be sooner: a file has to be still for so long. A busy machine delays many, not all.
        assert!(took[0] < Duration::from_millis(40), "{name}: {took:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_being_written_is_as_it_was_until_it_is_closed() {
    let mut watched = Watched::new("half", |root| {
        make_folder(root);
        let both = namespace("a", 1) + "---\n" + &namespace("b", 1);
        std::fs::write(root.join("m/a.yaml"), both).unwrap();
    });
    assert_eq!(watched.told().await.0, ["+a 1", "+b 1"]);
    let mut file = std::fs::File::create(watched.root.join("m/a.yaml")).unwrap();
    file.write_all(namespace("a", 2).as_bytes()).unwrap();
    for name in ["c", "d", "e"] {
        watched.write(&format!("{name}.yaml"), &namespace(name, 1));
        assert_eq!(watched.told().await.0, [format!("+{name} 1")]);
    }
    file.write_all(format!("---\n{}", namespace("b", 2)).as_bytes())
        .unwrap();
    drop(file);
    assert_eq!(watched.told().await.0, ["+a 2", "+b 2"]);
}

#[tokio::test]
async fn a_file_that_nobody_closes_counts_when_it_was_still_for_long() {
    let mut watched = Watched::new("unclosed", make_folder);
    watched.told().await;
    let mut file = std::fs::File::create(watched.root.join("m/a.yaml")).unwrap();
    file.write_all(namespace("a", 1).as_bytes()).unwrap();
    assert_eq!(watched.told().await.0, ["+a 1"]);
    drop(file);
}

#[tokio::test]
async fn many_files_at_once_are_one_change() {
    let mut watched = Watched::new("many", make_folder);
    watched.told().await;
    for number in 0..50 {
        watched.write(&format!("{number}.yaml"), &namespace(&format!("n{number}"), 1));
    }
    assert_eq!(watched.told().await.0.len(), 50);
}

#[tokio::test]
async fn a_folder_that_comes_later_or_again_is_listened_to() {
    let mut watched = Watched::new("again", make_folder);
    watched.told().await;
    for version in 1..=2 {
        std::fs::create_dir(watched.root.join("m/below")).unwrap();
        watched.write("below/a.yaml", &namespace("a", version));
        assert_eq!(watched.told().await.0, [format!("+a {version}")]);
        watched.write("below/a.yaml", &namespace("a", version + 10));
        assert_eq!(watched.told().await.0, [format!("+a {}", version + 10)]);
        std::fs::remove_dir_all(watched.root.join("m/below")).unwrap();
        assert_eq!(watched.told().await.0, ["-a"]);
    }
}

#[tokio::test]
async fn news_that_were_lost_are_made_up_for() {
    let most: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let mut watched = Watched::new("lost", make_folder);
    watched.told().await;
    let mut file = std::fs::File::create(watched.root.join("m/a.yaml")).unwrap();
    file.write_all(namespace("a", 1).as_bytes()).unwrap();
    // Nobody takes news while this thread is busy; what they would be of the end is lost.
    for number in 0..most {
        watched.write(&format!("{}.yaml", number % 2), "");
    }
    drop(file);
    watched.write("b.yaml", &namespace("b", 1));
    // The first of them, too: nobody waits for its end, though it was not heard.
    assert_eq!(watched.told().await.0, ["+a 1", "+b 1"]);
    watched.write("b.yaml", &namespace("b", 2));
    assert_eq!(watched.told().await.0, ["+b 2"]);
}

#[test]
fn where_the_kernel_gives_no_news_the_folder_is_looked_at() {
    // A user namespace has limits of its own, and who makes it may set them.
    for limit in ["max_inotify_instances", "max_inotify_watches"] {
        let script = format!("echo 0 > /proc/sys/user/{limit} && exec \"$0\" \"$@\"");
        let done = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", &script])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--test-threads", "1"])
            .args([
                "files_are_added_changed_and_removed",
                "a_folder_that_is_swapped_by_a_link_is_read_again_as_a_whole",
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.contains("2 passed"), "{limit}: {done:?}");
    }
}
