//! The images that the nodes import: Egret's, by deploy/image/build, and one with busybox and CoreDNS for everything else.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{daemon, demo::Screen};

use super::{Failure, machine::output, preconditions::Programs};

/// For sandboxes, clients, the cluster DNS and node-local-dns.
pub(super) const TOOLS: &str = "egret.test/tools:1";
/// Egret, and another build of it.
pub(super) const EGRET: &str = "ghcr.io/egret-project/egret";
pub(super) const OTHER_BUILD: &str = "ghcr.io/egret-project/egret-other";
/// Names the folder of the source of another build, with its programs in target/debug.
const OTHER_SOURCE: &str = "EGRET_OTHER_SOURCE";
const PROGRAMS: [&str; 6] = [
    "dnsd",
    "enforcer",
    "egret",
    "egret-cni",
    "proxy-server",
    "proxy-agent",
];

/// Archives in the OCI layout.
pub(super) struct Images(Vec<String>);

impl Images {
    pub(super) fn build(programs: &Programs, folder: &Path, screen: Screen) -> Result<Self, Failure> {
        let mut binaries = Vec::new();
        for program in PROGRAMS {
            binaries.push(daemon::binary(program)?);
        }
        let egret = build_egret(EGRET, &binaries, &folder.join("egret"))?;
        let tools = build_tools(programs, folder, &egret)?;
        let mut archives = vec![egret, tools];
        if let Some(other) = other_source() {
            // An earlier build may lack one of them, which no node starts: then it is this one's.
            let other = PROGRAMS.map(|program| other.join("target/debug").join(program));
            let chosen = other.into_iter().zip(binaries);
            let binaries = chosen
                .map(|(other, this)| if other.exists() { other } else { this })
                .collect::<Vec<_>>();
            archives.push(build_egret(OTHER_BUILD, &binaries, &folder.join("other"))?);
        } else {
            screen.line(&format!(
                "{OTHER_SOURCE} names no other build: the upgrade is to a second image of the same programs"
            ));
        }
        Ok(Self(archives))
    }

    pub(super) fn archives(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The image that stands for another build where there is none, and its source.
    pub(super) fn second_name() -> Option<[String; 2]> {
        let version = env!("CARGO_PKG_VERSION");
        other_source()
            .is_none()
            .then(|| [EGRET, OTHER_BUILD].map(|name| format!("{name}:{version}")))
    }
}

/// The source of another build, if one is named.
pub(super) fn other_source() -> Option<PathBuf> {
    env::var_os(OTHER_SOURCE).map(PathBuf::from)
}

/// Of programs that are built, without their symbols.
fn build_egret(name: &str, binaries: &[PathBuf], folder: &Path) -> Result<String, Failure> {
    let programs = folder.join("programs");
    fs::create_dir_all(&programs)?;
    for binary in binaries {
        let to = programs.join(binary.file_name().unwrap_or_default());
        run(&[
            "strip",
            "-o",
            &to.display().to_string(),
            &binary.display().to_string(),
        ])?;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image/build");
    let out = folder.join("image");
    let mut command = Command::new(script);
    command
        .arg(&out)
        .env("EGRET_BIN_DIR", &programs)
        .env("IMAGE", name)
        .env("COMPRESSION", "1");
    output(&mut command, &["deploy/image/build"])?;
    let archive = fs::read_dir(&out)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ending| ending == "tar"))
        .ok_or("deploy/image/build left no archive")?;
    Ok(archive.display().to_string())
}

/// Over the layer of Debian's packages of Egret's image: upstream's node-local-dns needs iptables.
fn build_tools(programs: &Programs, folder: &Path, egret: &str) -> Result<String, Failure> {
    let root = folder.join("tools");
    fs::create_dir_all(root.join("bin"))?;
    let layer = run(&[
        "sh",
        "-c",
        "tar -xOf \"$1\" ./manifest.json | jq -r '.[0].Layers[0]'",
        "sh",
        egret,
    ])?;
    let debian = folder.join("debian");
    fs::create_dir_all(&debian)?;
    let layer = layer.trim();
    run(&[
        "tar",
        "-C",
        &debian.display().to_string(),
        "-xf",
        egret,
        &format!("./{layer}"),
    ])?;
    run(&[
        "tar",
        "-C",
        &root.display().to_string(),
        "-xzf",
        &debian.join(layer).display().to_string(),
    ])?;
    // What the maintainer script of Debian's package does, which is not run.
    let alternatives = root.join("etc/alternatives");
    fs::create_dir_all(&alternatives)?;
    for family in ["iptables", "ip6tables"] {
        for ending in ["", "-save", "-restore"] {
            let program = format!("/usr/sbin/{family}-nft{ending}");
            std::os::unix::fs::symlink(program, alternatives.join(format!("{family}{ending}")))?;
            let link = root.join(format!("usr/sbin/{family}{ending}"));
            if link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(format!("/etc/alternatives/{family}{ending}"), link)?;
            }
        }
    }
    for path in ["etc", "tmp"] {
        fs::create_dir_all(root.join(path))?;
    }
    fs::copy("/bin/busybox", root.join("bin/busybox"))?;
    fs::copy(&programs.coredns, root.join("bin/coredns"))?;
    // It serves as what extends the API server.
    let this = std::env::current_exe()?.display().to_string();
    run(&[
        "strip",
        "-o",
        &root.join("bin/cluster").display().to_string(),
        &this,
    ])?;
    fs::copy(&programs.node_cache, root.join("node-cache"))?;
    for name in ["sh", "sleep", "wget", "nslookup", "ip", "cat"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name))?;
    }
    let layout = folder.join("tools-layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let layer = folder.join("layer.tar").display().to_string();
    let root = root.display().to_string();
    run(&["tar", "--owner=0", "--group=0", "-C", &root, "-cf", &layer, "."])?;
    let (layer, layer_size) = store(Path::new(&layer), &blobs)?;
    let config = format!(
        r#"{{"architecture": "{}", "os": "linux", "config": {{"Env": ["PATH=/usr/sbin:/bin"], "Entrypoint": ["/bin/sleep", "2147483647"]}}, "rootfs": {{"type": "layers", "diff_ids": ["sha256:{layer}"]}}}}"#,
        if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        }
    );
    let (config, config_size) = store_text(&config, folder, &blobs)?;
    let manifest = format!(
        r#"{{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": {{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:{config}", "size": {config_size}}}, "layers": [{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:{layer}", "size": {layer_size}}}]}}"#
    );
    let (manifest, size) = store_text(&manifest, folder, &blobs)?;
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#)?;
    fs::write(
        layout.join("index.json"),
        format!(
            r#"{{"schemaVersion": 2, "manifests": [{{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:{manifest}", "size": {size}, "annotations": {{"io.containerd.image.name": "{TOOLS}"}}}}]}}"#
        ),
    )?;
    let archive = folder.join("tools.tar").display().to_string();
    run(&["tar", "-C", &layout.display().to_string(), "-cf", &archive, "."])?;
    Ok(archive)
}

fn store_text(text: &str, folder: &Path, blobs: &Path) -> Result<(String, u64), Failure> {
    let path = folder.join("blob");
    fs::write(&path, text)?;
    store(&path, blobs)
}

/// Moves a file among the blobs. Returns its digest and its size in octets.
fn store(path: &Path, blobs: &Path) -> Result<(String, u64), Failure> {
    let sum = run(&["sha256sum", &path.display().to_string()])?;
    let digest = sum.split(' ').next().unwrap_or_default().to_owned();
    let size = fs::metadata(path)?.len();
    fs::rename(path, blobs.join(&digest))?;
    Ok((digest, size))
}

fn run(argv: &[&str]) -> Result<String, Failure> {
    output(Command::new(argv[0]).args(&argv[1..]), argv)
}
