//! `make cluster`: a Kubernetes cluster of three nodes on this machine, with Egret. `KEEP=1` leaves it running.

use std::{env, net::SocketAddr, path::Path, process::ExitCode};

use egret_integration::{cluster, demo::Ending, extension};

fn main() -> ExitCode {
    let arguments = env::args().skip(1).collect::<Vec<_>>();
    let result = match &*arguments {
        // The first process of one of its machines.
        [command, name, folder] if command == "init" => {
            cluster::init(name, Path::new(folder)).map(|()| Ending::AsExpected)
        }
        // A container of one of its pods.
        [command, folder] if command == "extension" => extend(Path::new(folder)),
        [] => cluster::run(env::var("KEEP").is_ok_and(|value| !value.is_empty() && value != "0")),
        _ => Err("usage: [KEEP=1] cluster".into()),
    };
    match result {
        Ok(Ending::AsExpected) => ExitCode::SUCCESS,
        Ok(Ending::Differs) => ExitCode::from(1),
        Ok(Ending::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("cluster: {error}");
            ExitCode::from(1)
        }
    }
}

/// Until it is killed.
fn extend(keys: &Path) -> Result<Ending, Box<dyn std::error::Error>> {
    extension::serve(keys, SocketAddr::from(([0, 0, 0, 0], 8443)))?;
    loop {
        std::thread::park();
    }
}
