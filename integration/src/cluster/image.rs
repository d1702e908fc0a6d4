//! The images that the nodes import: Egret's, by deploy/image/build, and one with busybox and CoreDNS for everything else.

use std::{fs, path::Path, process::Command};

use crate::daemon;

use super::{Failure, machine::output, preconditions::Programs};

/// For sandboxes, clients and the cluster DNS.
pub(super) const TOOLS: &str = "egret.test/tools:1";
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
    pub(super) fn build(programs: &Programs, folder: &Path) -> Result<Self, Failure> {
        Ok(Self(vec![build_egret(folder)?, build_tools(programs, folder)?]))
    }

    pub(super) fn archives(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Of the programs that are built, without their symbols.
fn build_egret(folder: &Path) -> Result<String, Failure> {
    let programs = folder.join("programs");
    fs::create_dir_all(&programs)?;
    for program in PROGRAMS {
        let (from, to) = (
            daemon::binary(program)?.display().to_string(),
            programs.join(program).display().to_string(),
        );
        run(&["strip", "-o", &to, &from])?;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image/build");
    let out = folder.join("image");
    let mut command = Command::new(script);
    command.arg(&out).env("EGRET_BIN_DIR", &programs);
    output(&mut command, &["deploy/image/build"])?;
    let archive = fs::read_dir(&out)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|ending| ending == "tar"))
        .ok_or("deploy/image/build left no archive")?;
    Ok(archive.display().to_string())
}

fn build_tools(programs: &Programs, folder: &Path) -> Result<String, Failure> {
    let root = folder.join("tools");
    fs::create_dir_all(root.join("bin"))?;
    for path in ["etc", "tmp"] {
        fs::create_dir_all(root.join(path))?;
    }
    fs::copy("/bin/busybox", root.join("bin/busybox"))?;
    fs::copy(&programs.coredns, root.join("bin/coredns"))?;
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
        r#"{{"architecture": "{}", "os": "linux", "config": {{"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "2147483647"]}}, "rootfs": {{"type": "layers", "diff_ids": ["sha256:{layer}"]}}}}"#,
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
