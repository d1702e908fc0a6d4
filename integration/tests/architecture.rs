//! The arrows of ARCHITECTURE.md, held: which crate may depend on what, which module may use what, how long
//! a file may be.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// Crate, the workspace crates that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("egret-shared", &[]),
    ("egret-policies", &["egret-shared"]),
    ("egret-kernel", &["egret-shared"]),
    (
        "egret-enforcer",
        &["egret-shared", "egret-policies", "egret-kernel"],
    ),
    ("egret-dnsd", &["egret-shared", "egret-kernel"]),
    ("egret-cni", &["egret-shared", "egret-kernel"]),
    ("egret-konnectivity", &["egret-shared", "egret-policies"]),
    ("egret-cli", &["egret-shared", "egret-policies"]),
];

/// Crate, packages that it may never use: each would let it cheat.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "egret-policies",
        &[
            "tokio",
            "kube",
            "k8s-openapi",
            "aya",
            "nix",
            "libc",
            "socket2",
            "rand",
            "tracing",
            "metrics",
        ],
    ),
    (
        "egret-kernel",
        &["tokio", "kube", "aya", "serde", "hickory-proto"],
    ),
    ("egret-dnsd", &["kube", "aya", "hickory-server"]),
    ("egret-cni", &["kube", "aya", "tokio"]),
    ("egret-konnectivity", &["aya"]),
    ("egret-cli", &["kube", "aya", "nix", "tokio"]),
];

/// Folder or file, words that may not stand in it, why.
const WORDS: &[(&str, &[&str], &str)] = &[
    (
        "policies/src",
        &[
            "std::fs",
            "std::env",
            "std::process",
            "std::thread",
            "Instant::now",
            "SystemTime",
            "TcpStream",
            "UdpSocket",
        ],
        "policies is a function with memory: no IO, no clock",
    ),
    (
        "enforcer/src/backend",
        &[
            "policies::api",
            "policies::lower",
            "policies::model",
            "policies::compiler",
            "crate::watch",
            "crate::link",
        ],
        "a backend sees policies::rules, and what policies::decision makes of them",
    ),
    (
        "enforcer/src/watch",
        &["crate::backend"],
        "the source of objects knows no backend",
    ),
    (
        "dnsd/src",
        &["NetworkPolicy", "egret_policies"],
        "dnsd knows names and who asked, not policies",
    ),
    (
        "dnsd/src/zones",
        &["egret_kernel::iptables", "egret_kernel::ipset"],
        "what answers writes no rules: node_cache does",
    ),
    (
        "konnectivity/src/core",
        &[
            "tokio",
            "std::fs",
            "std::io",
            "std::net::Tcp",
            "std::sync",
            "Instant::now",
            "SystemTime",
            "crate::server",
            "crate::agent",
        ],
        "the state of server and agent has no IO, no clock, no lock",
    ),
    (
        "enforcer/src/node",
        &["crate::backend"],
        "what is read of the node's links knows no backend",
    ),
];

/// Folder; its rooms with the rooms that each may use beside itself. A room is a module of the crate's root, or one below it
/// (`config::model`) that is lower than its parent. Tests at the end of a file may use any.
const ROOMS: &[(&str, Rooms)] = &[("dnsd/src", DNSD_ROOMS)];

/// Room, the rooms that it may use.
type Rooms = &'static [(&'static str, &'static [&'static str])];

const DNSD_ROOMS: Rooms = &[
    ("exit", &[]),
    ("hash", &[]),
    ("net", &[]),
    ("kernel_answers", &["hash"]),
    ("dns", &["net"]),
    ("config::model", &["dns"]),
    ("limits", &["hash"]),
    ("cache", &["hash", "dns", "config::model"]),
    (
        "upstream",
        &["hash", "net", "dns", "config::model", "limits", "cache"],
    ),
    ("encryption", &["config::model", "upstream"]),
    ("plugins", &["dns", "config::model"]),
    (
        "enforcement",
        &["hash", "kernel_answers", "dns", "limits", "upstream"],
    ),
    (
        "config",
        &[
            "exit",
            "dns",
            "config::model",
            "limits",
            "cache",
            "upstream",
            "plugins",
            "enforcement",
            "encryption",
        ],
    ),
    (
        "zones",
        &[
            "encryption",
            "net",
            "kernel_answers",
            "dns",
            "config::model",
            "limits",
            "cache",
            "upstream",
            "plugins",
            "enforcement",
            "config",
        ],
    ),
    (
        "pipeline",
        &[
            "hash",
            "net",
            "kernel_answers",
            "dns",
            "limits",
            "cache",
            "upstream",
            "enforcement",
            "config",
            "zones",
        ],
    ),
    ("takeover", &["enforcement", "zones", "pipeline"]),
    (
        "listener",
        &[
            "net",
            "dns",
            "config::model",
            "limits",
            "enforcement",
            "zones",
            "pipeline",
            "takeover",
        ],
    ),
    ("host", &["dns", "config"]),
    (
        "telemetry",
        &[
            "config::model",
            "config",
            "enforcement",
            "zones",
            "takeover",
            "listener",
        ],
    ),
    ("command", &["config", "takeover"]),
];

/// The folder of the netfilter backend.
const NETFILTER: &str = "enforcer/src/backend/netfilter";

/// The rooms of `NETFILTER` in order: each is a module (a file, a folder or both) with the rooms that it may use. These stand
/// before it, so there are no circles. A module without a row is an error, and so is a row without a module.
const NETFILTER_ROOMS: Rooms = &[
    ("names", &[]),
    ("marks", &["names"]),
    ("model", &["names", "marks"]),
    ("denials", &["names"]),
    ("drift", &[]),
    ("render", &["names", "marks", "model", "denials"]),
    ("sets", &["names", "model", "drift"]),
    (
        "tables",
        &["names", "marks", "model", "denials", "drift", "render"],
    ),
    ("bridges", &["names", "render"]),
    ("pod_netns", &["model", "render", "sets", "tables"]),
    ("cleanup", &["names", "tables", "bridges", "pod_netns"]),
    (
        "compile",
        &[
            "names", "marks", "model", "denials", "render", "sets", "tables", "bridges",
        ],
    ),
    ("connections", &["names", "marks", "model", "sets"]),
    (
        "monitor",
        &["names", "marks", "model", "sets", "tables", "pod_netns"],
    ),
    (
        "driver",
        &[
            "names",
            "marks",
            "model",
            "denials",
            "drift",
            "sets",
            "tables",
            "bridges",
            "pod_netns",
            "cleanup",
            "compile",
            "connections",
            "monitor",
        ],
    ),
];

/// The most lines of a source file, unless it says why it is longer.
const MAX_LINES: usize = 800;

/// The workspace's crates, as `cargo metadata` names them.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`; those of the crate itself have none.
    kind: Option<String>,
    features: Vec<String>,
}

fn workspace() -> Metadata {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts");
    serde_json::from_slice(&cargo.stdout).expect("cargo metadata runs in a checkout")
}

fn package<'a>(metadata: &'a Metadata, name: &str) -> &'a Package {
    metadata
        .packages
        .iter()
        .find(|package| package.name == name)
        .unwrap_or_else(|| panic!("no crate {name}"))
}

fn dependencies(package: &Package) -> BTreeSet<&str> {
    let normal = package.dependencies.iter().filter(|used| used.kind.is_none());
    normal.map(|used| used.name.as_str()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
        .to_owned()
}

fn source_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() && !path.ends_with("target") => folders.push(path),
                Some(extension) if extension == "rs" => found.push(path),
                Some(_) | None => {}
            }
        }
    }
    found
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let metadata = workspace();
    for (name, allowed) in ARROWS {
        let used = dependencies(package(&metadata, name));
        let crossed: Vec<_> = used
            .iter()
            .filter(|used| used.starts_with("egret-") && !allowed.contains(used))
            .collect();
        assert!(
            crossed.is_empty(),
            "{name} depends on {crossed:?}; it may use {allowed:?}"
        );
    }
}

#[test]
fn nothing_depends_on_the_tests_but_the_benches() {
    for package in workspace().packages {
        let used = dependencies(&package);
        assert!(
            !used.contains("egret-benches"),
            "{} depends on the benches",
            package.name
        );
        let measures = package.name == "egret-benches";
        assert!(
            measures || !used.contains("egret-integration"),
            "{} depends on the tests' world",
            package.name
        );
    }
}

#[test]
fn no_crate_has_a_forbidden_dependency() {
    let metadata = workspace();
    for (name, forbidden) in FORBIDDEN {
        let used = dependencies(package(&metadata, name));
        let cheats: Vec<_> = forbidden
            .iter()
            .filter(|forbidden| used.contains(*forbidden))
            .collect();
        assert!(cheats.is_empty(), "{name} depends on {cheats:?}");
    }
}

#[test]
fn the_pure_crates_use_shared_without_its_runtime() {
    let metadata = workspace();
    for name in ["egret-policies", "egret-cli"] {
        let shared = package(&metadata, name)
            .dependencies
            .iter()
            .find(|used| used.name == "egret-shared")
            .unwrap();
        assert!(
            !shared.features.contains(&"rt".to_owned()),
            "{name} uses egret-shared with the feature rt"
        );
    }
}

#[test]
fn modules_keep_to_their_rows() {
    for (place, words, why) in WORDS {
        for file in source_files(&root().join(place)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            for (number, line) in code.enumerate() {
                let word = words.iter().find(|word| line.contains(**word));
                assert!(
                    word.is_none(),
                    "{}: {:?} in code line {number}: {why}",
                    file.display(),
                    word
                );
            }
        }
    }
}

/// Files of the enforcer that read the wall clock: for what people read, and to tell one process from another.
const WALL_CLOCK: &[&str] = &[
    "controller/lease.rs",
    "controller/writer.rs",
    "events.rs",
    "state/objects/writer.rs",
];

/// Clocks of nodes and of the API server may differ.
#[test]
fn nothing_that_is_decided_reads_the_wall_clock() {
    let source = root().join("enforcer/src");
    for file in source_files(&source) {
        let name = file.strip_prefix(&source).unwrap().display().to_string();
        let code = code_of(&std::fs::read_to_string(&file).unwrap());
        let reads = ["since_epoch", "SystemTime::now", "Utc::now", "Timestamp::now"];
        assert_eq!(
            reads.iter().any(|word| code.contains(word)),
            WALL_CLOCK.contains(&name.as_str()),
            "{name}"
        );
    }
}

#[test]
fn rooms_use_only_the_rooms_of_their_row() {
    for (folder, rooms) in ROOMS {
        let source = root().join(folder);
        for file in source_files(&source) {
            let path = file.strip_prefix(&source).unwrap().with_extension("");
            let module = path.to_str().unwrap().replace('/', "::");
            let Some((own, allowed)) = room_of(rooms, &module) else {
                assert!(
                    ["lib", "main"].contains(&module.as_str()) || module.starts_with("daemon"),
                    "{folder}: {module} is in no room"
                );
                continue;
            };
            let text = std::fs::read_to_string(&file).unwrap();
            let without_tests = text.split("\n#[cfg(test)]\n").next().unwrap_or(&text);
            let names = module_of(&file);
            let paths = crate_paths(&code_of(without_tests), &names);
            // `pub(in super::super)` names a module that holds this one: no use of it.
            for path in paths.iter().filter(|path| !names.starts_with(path)) {
                let used = path.join("::");
                let (room, _) =
                    room_of(rooms, &used).unwrap_or_else(|| panic!("{}: crate::{used}", file.display()));
                assert!(
                    room == own || allowed.contains(&room),
                    "{}: the room {own} uses {room} (crate::{used}); it may use {allowed:?}",
                    file.display()
                );
            }
        }
    }
}

/// The row of the longest room that holds a module.
fn room_of(rooms: Rooms, module: &str) -> Option<(&'static str, &'static [&'static str])> {
    let holds = |room: &str| {
        let rest = module.strip_prefix(room);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let holding = rooms.iter().filter(|(room, _)| holds(room));
    holding.max_by_key(|(room, _)| room.len()).copied()
}

/// The modules that lead to a file, from the root of its crate.
fn module_of(file: &Path) -> Vec<String> {
    let names = file.iter().map(|name| name.to_str().unwrap());
    let behind_src = names.skip_while(|name| *name != "src").skip(1);
    let mut module: Vec<String> = behind_src
        .map(|name| name.trim_end_matches(".rs").to_owned())
        .collect();
    if module
        .last()
        .is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str()))
    {
        module.pop();
    }
    module
}

/// The code of a file without comments and strings, so that what they say is no path.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines() {
        let mut in_string = false;
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '/' if !in_string && letters.peek() == Some(&'/') => break,
                '\\' if in_string => drop(letters.next()),
                '"' => in_string = !in_string,
                letter if !in_string => code.push(letter),
                _ => {}
            }
        }
        code.push('\n');
    }
    code
}

/// The paths that code says, with the trees of `use` expanded: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths_of(code: &str) -> Vec<Vec<String>> {
    let (mut paths, mut path, mut outer) = (Vec::new(), Vec::<String>::new(), Vec::new());
    let mut word = String::new();
    let mut letters = code.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter.is_alphanumeric() || letter == '_' {
            word.push(letter);
            continue;
        }
        if !word.is_empty() {
            path.push(std::mem::take(&mut word));
        }
        match (letter, letters.peek()) {
            (':', Some(':')) => {
                letters.next();
                // The tree behind `a::{`.
                if letters.peek() == Some(&'{') {
                    letters.next();
                    outer.push(path.clone());
                }
                continue;
            }
            ('}', _) => {
                paths.push(std::mem::take(&mut path));
                outer.pop();
            }
            _ => paths.push(std::mem::take(&mut path)),
        }
        // Any other brace is no tree, but has its end.
        if letter == '{' {
            outer.push(Vec::new());
        }
        path = outer.last().cloned().unwrap_or_default();
    }
    paths
}

/// A path from the root of the crate; none where it begins elsewhere.
fn resolved(path: &[String], module: &[String]) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => {
            let above = module.len().checked_sub(supers)?;
            Some([&module[..above], &path[supers..]].concat())
        }
        _ => None,
    }
}

/// The paths into the own crate that code of a module says, from the root of the crate.
fn crate_paths(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let paths = paths_of(code).into_iter();
    let resolved = paths.filter_map(|path| resolved(&path, module));
    // `pub(crate)` and its like name no module.
    resolved.filter(|path| !path.is_empty()).collect()
}

/// The rooms of a folder that the code of a file uses.
fn rooms_used(text: &str, module: &[String], folder: &[String]) -> BTreeSet<String> {
    let code = code_of(text);
    let mut parts = code.splitn(2, "\nmod tests {");
    let inner = [module, &["tests".to_owned()]].concat();
    let modules = [module, inner.as_slice()];
    let mut used = BTreeSet::new();
    for (part, module) in parts.by_ref().zip(modules) {
        for path in crate_paths(part, module) {
            let behind = path.strip_prefix(folder).and_then(|behind| behind.first());
            used.extend(behind.cloned());
        }
    }
    used
}

fn strings(folder: &str) -> Vec<String> {
    module_of(Path::new(folder))
}

#[test]
fn netfilter_rooms_use_only_earlier_rooms_of_their_row() {
    let (folder, rooms) = (NETFILTER, NETFILTER_ROOMS);
    let mut before = BTreeSet::new();
    for (room, uses) in rooms {
        let later: Vec<_> = uses.iter().filter(|used| !before.contains(*used)).collect();
        assert!(later.is_empty(), "{folder}: {room} comes before {later:?}");
        before.insert(*room);
    }
    let base = strings(folder);
    let (mut found, mut crossed) = (BTreeSet::new(), Vec::new());
    for file in source_files(&root().join(folder)) {
        let module = module_of(&file);
        let Some(room) = module.get(base.len()) else {
            continue;
        };
        found.insert(room.clone());
        let row = rooms.iter().find(|(name, _)| name == room);
        let (_, allowed) = row.unwrap_or_else(|| panic!("{folder} has no row for {room}"));
        let text = std::fs::read_to_string(&file).unwrap();
        let used = rooms_used(&text, &module, &base);
        let others = used
            .iter()
            .filter(|used| *used != room && !allowed.contains(&used.as_str()));
        crossed.extend(others.map(|used| format!("{} uses {used}", file.display())));
    }
    assert!(crossed.is_empty(), "against the rows: {crossed:#?}");
    let missing: Vec<_> = before.iter().filter(|room| !found.contains(**room)).collect();
    assert!(
        missing.is_empty(),
        "{folder} has rows for {missing:?}, and no such modules"
    );
}

#[test]
fn paths_are_found_in_trees_and_in_code() {
    let text = "use crate::a::{b, c::{self, D}};\nuse super::e::F; // crate::no::x\nfn f() { crate::a::g::h(\"crate::no::y\") }\n\
                #[cfg(test)]\nmod tests {\n    use super::super::i::J;\n    use super::*;\n}\n";
    let module = ["a", "k"].map(str::to_owned);
    let used = rooms_used(text, &module, &["a".to_owned()]);
    let expected = ["b", "c", "e", "g", "i", "k"].map(str::to_owned);
    assert_eq!(used, BTreeSet::from(expected));
}

#[test]
fn a_file_over_800_lines_says_why() {
    for file in source_files(&root()) {
        let text = std::fs::read_to_string(&file).unwrap();
        let reasoned = text
            .lines()
            .take(30)
            .any(|line| line.contains("longer than 800 lines because"));
        assert!(
            text.lines().count() <= MAX_LINES || reasoned,
            "{} has {} lines; split it by what changes together, or say at its top that it is \"longer than 800 lines because …\"",
            file.display(),
            text.lines().count()
        );
    }
}
