//! `make cluster`: a Kubernetes cluster of three nodes on this machine, with Egret. `KEEP=1` leaves it running, `IP_FAMILY` is `dual`, `ipv4` or
//! `ipv6`.

use std::{
    env,
    net::{Ipv6Addr, SocketAddr},
    path::Path,
    process::ExitCode,
};

use egret_integration::{
    cluster::{self, Network},
    demo::Ending,
    extension,
};

fn main() -> ExitCode {
    let arguments = env::args().skip(1).collect::<Vec<_>>();
    let result = match &*arguments {
        // The first process of one of its machines.
        [command, name, folder] if command == "init" => {
            cluster::init(name, Path::new(folder)).map(|()| Ending::AsExpected)
        }
        // A container of one of its pods.
        [command, folder] if command == "extension" => extend(Path::new(folder)),
        [] => run(),
        _ => Err("usage: [KEEP=1] [IP_FAMILY=dual|ipv4|ipv6] cluster".into()),
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

fn run() -> Result<Ending, Box<dyn std::error::Error>> {
    let keep = env::var("KEEP").is_ok_and(|value| !value.is_empty() && value != "0");
    let network = match env::var("IP_FAMILY") {
        Ok(text) if !text.is_empty() => text.parse()?,
        Ok(_) | Err(env::VarError::NotPresent) => Network::DUAL_STACK,
        Err(error) => return Err(format!("IP_FAMILY: {error}").into()),
    };
    cluster::run(network, keep)
}

/// Of both families, until it is killed.
fn extend(keys: &Path) -> Result<Ending, Box<dyn std::error::Error>> {
    extension::serve(keys, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 8443)))?;
    loop {
        std::thread::park();
    }
}
