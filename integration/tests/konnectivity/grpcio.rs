//! grpcio (PyPI) as a client: an implementation of gRPC and of HTTP/2 that is neither Go's nor ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::pair::{Front, Pair, Program};
use super::targets::Target;

const GRPCIO: &str = "grpcio==1.76.0";

/// The interpreter of a venv with grpcio, in `target`. None where it cannot be made: that is said loudly.
fn interpreter() -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/grpcio");
    let python = venv.join("bin/python3");
    let imports = |python: &Path| {
        let import = Command::new(python).args(["-c", "import grpc"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    if imports(&python) {
        return Some(python);
    }
    let made = run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
    let pip = ["-m", "pip", "install", "--quiet", "--only-binary=:all:", GRPCIO];
    let installed = made.and_then(|_| run(Command::new(&python).args(pip)));
    match installed {
        Ok(_) if imports(&python) => Some(python),
        Ok(_) => panic!("{GRPCIO} is installed and cannot be imported"),
        Err(error) => {
            eprintln!("NOT TESTED: a client by grpcio, for {GRPCIO} cannot be installed from PyPI: {error}");
            None
        }
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&stderr).into_owned()),
    }
}

/// Its authority is the path of the socket, as grpc-go's is.
#[test]
fn a_client_by_grpcio_has_many_connections_on_one_channel() {
    let Some(python) = interpreter() else {
        return;
    };
    let pair = Pair::start(Program::Ours, Program::Ours, Front::GrpcUds).unwrap();
    let target = Target::echo();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/konnectivity/grpcio_client.py");
    let mut command = Command::new(python);
    command
        .arg(client)
        .arg(pair.socket())
        .args([&target.address(), "20", "1000"]);
    let said = run(&mut command).unwrap();
    let expected = "echoed 20\nopen at once 1000\ndial tcp 127.0.0.1:1: connect: connection refused\n";
    assert_eq!(said, expected);
    let open = "konnectivity_network_proxy_server_established_connections";
    super::within("nothing is left", || pair.server_metric(open) == Some(0.0));
}
