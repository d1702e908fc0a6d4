//! The arrows of ARCHITECTURE.md, held: which crate may depend on what, which module may use what, how long
//! a file may be.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

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
        "a backend sees policies::rules and nothing else",
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
    ("dns", &["net"]),
    ("config::model", &["dns"]),
    ("limits", &["hash"]),
    ("cache", &["hash", "dns", "config::model"]),
    (
        "upstream",
        &["hash", "net", "dns", "config::model", "limits", "cache"],
    ),
    ("plugins", &["dns", "config::model"]),
    ("enforcement", &["hash", "dns", "limits", "upstream"]),
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
        ],
    ),
    (
        "zones",
        &[
            "net",
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
            "net",
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
    ("command", &["config"]),
];

/// The most lines of a source file, unless it says why it is longer.
const MAX_LINES: usize = 800;

fn workspace() -> Metadata {
    MetadataCommand::new()
        .no_deps()
        .exec()
        .expect("cargo metadata runs in a checkout")
}

fn package<'a>(metadata: &'a Metadata, name: &str) -> &'a Package {
    metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == name)
        .unwrap_or_else(|| panic!("no crate {name}"))
}

fn dependencies(package: &Package) -> BTreeSet<String> {
    let normal = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind == DependencyKind::Normal);
    normal.map(|dependency| dependency.name.clone()).collect()
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
            .filter(|used| used.starts_with("egret-") && !allowed.contains(&used.as_str()))
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
        let measures = package.name.as_str() == "egret-benches";
        assert!(
            measures || !used.contains("egret-integration"),
            "{} depends on the tests' world",
            package.name
        );
    }
}

#[test]
fn no_crate_has_a_dependency_that_lets_it_cheat() {
    let metadata = workspace();
    for (name, forbidden) in FORBIDDEN {
        let used = dependencies(package(&metadata, name));
        let cheats: Vec<_> = forbidden
            .iter()
            .filter(|forbidden| used.contains(**forbidden))
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
            for used in crate_paths(&text) {
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

/// The paths behind `crate::` in the code of a file, without comments and the tests at its end. Each path of a group in
/// braces is one of them.
fn crate_paths(text: &str) -> Vec<String> {
    let code = text.split("\n#[cfg(test)]\n").next().unwrap_or(text);
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or(line));
    let code: String = lines.collect();
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut paths = Vec::new();
    for (start, _) in code.match_indices("crate::") {
        if code[..start].chars().next_back().is_some_and(is_name) {
            continue;
        }
        let rest = &code[start + "crate::".len()..];
        let end = rest.find(|letter| !is_name(letter) && letter != ':');
        let (path, behind) = rest.split_at(end.unwrap_or(rest.len()));
        match behind.strip_prefix('{').and_then(|group| group.split('}').next()) {
            Some(group) => {
                let parts = group.split(',').map(str::trim).filter(|part| !part.is_empty());
                paths.extend(parts.map(|part| format!("{path}{part}")));
            }
            None => paths.push(path.trim_end_matches(':').to_owned()),
        }
    }
    paths
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
