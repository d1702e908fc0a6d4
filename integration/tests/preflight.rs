//! `egret preflight` on nodes of the world, beside what others leave there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use egret_integration::{DaemonSpec, ProxyMode, ServicePort, World};

type Told = Result<(), Box<dyn std::error::Error>>;

/// The exit code, and the line of a subject.
fn preflight(world: &World, subject: &str) -> (Option<i32>, String) {
    let egret = DaemonSpec::enforcer(0).binary.with_file_name("egret");
    let output = world
        .node()
        .run(&[&egret.display().to_string(), "preflight"])
        .unwrap();
    let line = output
        .stdout
        .lines()
        .find(|line| line.split_whitespace().nth(1) == Some(subject));
    (output.status, line.unwrap_or(&output.stderr).to_owned())
}

#[test]
fn the_mode_of_kube_proxy_is_found_by_its_rules() -> Told {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    assert!(preflight(&world, "kube-proxy").1.contains("none of its modes"));
    let services = [ServicePort::tcp("web")
        .at("10.96.0.80:80".parse()?)
        .to("10.244.0.9:80".parse()?)];
    for (mode, said) in [
        (ProxyMode::Iptables, "mode iptables"),
        (ProxyMode::Nftables, "mode nftables"),
    ] {
        world.proxy(mode, &services)?;
        let (status, line) = preflight(&world, "kube-proxy");
        assert!(line.contains(said), "{mode:?}: {line}");
        assert_eq!(status, Some(0));
    }
    Ok(())
}

#[test]
fn a_rule_that_writes_egrets_marks_must_go() -> Told {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    for (flavour, bits, status) in [
        ("iptables-nft", "0x80/0x80", 0),
        ("iptables-legacy", "0x10000/0x10000", 1),
    ] {
        let rule = [
            "-t",
            "mangle",
            "-A",
            "PREROUTING",
            "-j",
            "CONNMARK",
            "--set-xmark",
            bits,
        ];
        let written = world.node().run(&[&[flavour], &rule[..]].concat())?;
        assert!(written.success(), "{}", written.stderr);
        let (ended, line) = preflight(&world, "marks");
        assert_eq!(ended, Some(status), "{line}");
        assert_eq!(line.contains(bits), status == 1, "{line}");
    }
    Ok(())
}

#[test]
fn what_is_on_the_node_is_named() -> Told {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    for command in [
        "ip link add nodelocaldns type ifb",
        "ip link add cni0 type bridge",
        "ip link add port0 type veth peer name port1",
        "ip link set port0 master cni0",
        "iptables-nft -N cali-FORWARD",
        "iptables-nft -t mangle -N KUBE-IPTABLES-HINT",
    ] {
        let words: Vec<&str> = command.split_whitespace().collect();
        let done = world.node().run(&words)?;
        assert!(done.success(), "{command}: {}", done.stderr);
    }
    for (subject, said) in [
        ("node-local-dns", "it is here"),
        ("bridges", "cni0: packets between their ports"),
        ("other", "Calico has rules here"),
        ("iptables", "flavour nft, the kubelet's"),
    ] {
        let (_, line) = preflight(&world, subject);
        assert!(line.contains(said), "{subject}: {line}");
    }
    Ok(())
}
