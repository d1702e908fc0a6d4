//! The manifests of `deploy/konnectivity`: both programs take their flags, and the policies are understood.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use egret_konnectivity::{agent, server};
use egret_policies::api::manifest::read;
use egret_policies::lower::lower;
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/konnectivity")
}

/// The flags of the only container of a file's last object, as a shell of the pod would have them.
fn flags(file: &str, pod_spec: &str) -> Vec<String> {
    let text = fs::read_to_string(folder().join(file)).unwrap();
    let last = text.split("\n---\n").last().unwrap();
    let object: Value = serde_saphyr::from_str(last).unwrap();
    let container = object.pointer(pod_spec).unwrap()["containers"][0].clone();
    let words = |field: &str| {
        let words = container[field].as_array().unwrap().clone();
        words.into_iter().map(|word| word.as_str().unwrap().to_owned())
    };
    let filled = |word: String| {
        word.replace("$(NODE_NAME)", "node-1")
            .replace("$(HOST_IP)", "192.0.2.7")
    };
    words("command").chain(words("args")).map(filled).collect()
}

#[test]
fn both_programs_take_the_flags_of_the_manifests() {
    let of_server = flags("proxy-server.yaml", "/spec");
    assert_eq!(of_server[0], "/usr/bin/proxy-server");
    server::Options::try_parse_from(&of_server)
        .unwrap()
        .check()
        .unwrap();
    let of_agent = flags("proxy-agent.yaml", "/spec/template/spec");
    assert_eq!(of_agent[0], "/usr/bin/proxy-agent");
    agent::Options::try_parse_from(&of_agent).unwrap();
}

/// Manifests and tests that list every flag of upstream's.
#[test]
fn what_is_not_there_may_be_turned_off_and_not_on() {
    let refused = |program: &str, flag: &str| {
        let flags = [program, flag];
        let error = match program {
            "proxy-server" => server::Options::try_parse_from(flags).err(),
            _ => agent::Options::try_parse_from(flags).err(),
        };
        error.map(|error| error.to_string())
    };
    for program in ["proxy-server", "proxy-agent"] {
        for flag in ["--enable-profiling", "--enable-contention-profiling"] {
            assert_eq!(refused(program, &format!("{flag}=false")), None);
            for on in [flag.to_owned(), format!("{flag}=true")] {
                let text = refused(program, &on).unwrap();
                assert!(text.contains("there is no profiling"), "{text}");
            }
        }
    }
    for (flag, least) in [("--cipher-suites", ""), ("--tls-min-version", "VersionTLS12")] {
        for taken in ["", least] {
            assert_eq!(refused("proxy-server", &format!("{flag}={taken}")), None);
        }
        for other in ["TLS_AES_128_GCM_SHA256", "VersionTLS13"] {
            let text = refused("proxy-server", &format!("{flag}={other}")).unwrap();
            assert!(text.contains("accepted"), "{text}");
        }
    }
}

#[test]
fn the_policies_of_the_manifests_are_understood() {
    let text = fs::read_to_string(folder().join("policies/audit.yaml")).unwrap();
    let manifest = read(&text, "audit.yaml");
    assert_eq!((manifest.problems, manifest.documents.len()), (Vec::new(), 1));
    let lowered = lower(&manifest.documents[0].object);
    assert_eq!(lowered.diagnostics, []);
    assert_eq!(lowered.api_server.unwrap().rules.len(), 3);
}

/// As upstream's pflag has it: of a flag that is there twice the last one counts, and empty is nothing.
#[test]
fn flags_that_contradict_each_other_are_refused() {
    let refused = |flags: &[&str]| {
        let flags = [
            &[
                "proxy-server",
                "--cluster-cert=c",
                "--cluster-key=k",
                "--uds-name=s",
                "--server-port=0",
            ],
            flags,
        ];
        let options = server::Options::try_parse_from(flags.concat());
        options
            .map_err(|error| error.to_string())
            .and_then(|it| it.check().map_err(|error| error.to_string()))
    };
    let token = [
        "--agent-namespace=n",
        "--agent-service-account=s",
        "--authentication-audience=a",
    ];
    assert_eq!(refused(&["--cluster-ca-cert=ca"]), Ok(()));
    let of_upstream = [
        "--cluster-ca-cert=ca",
        "--enable-lease-controller",
        "--lease-namespace=kube-system",
        "--lease-label=k8s-app=konnectivity-server,tier=control-plane",
        "--graceful-shutdown-timeout=10s",
        "--frontend-keepalive-time=1h",
        "--kubeconfig-qps=75",
        "--kubeconfig-burst=150",
        "--kube-api-content-type=application/json",
        "--xfr-channel-size=10",
        "--warn-on-channel-limit",
    ];
    assert_eq!(refused(&of_upstream), Ok(()));
    assert_eq!(refused(&token), Ok(()));
    assert_eq!(
        refused(&[&token[..], &["--cluster-ca-cert=ca", "--cluster-ca-cert="]].concat()),
        Ok(())
    );
    for (flags, said) in [
        (vec![], "--cluster-ca-cert, or --agent-namespace"),
        (vec!["--agent-namespace=n"], "are given together"),
        (
            [&token[..], &["--cluster-ca-cert=ca"]].concat(),
            "agents show a certificate or a token",
        ),
        (
            vec![
                "--cluster-ca-cert=ca",
                "--frontend=selection=cluster,mode=grpc,tcp=127.0.0.1:1",
            ],
            "no API server speaks grpc",
        ),
        (
            vec![
                "--cluster-ca-cert=ca",
                "--frontend=selection=nodes,mode=grpc,uds=s",
            ],
            "none of controlplane, cluster, etcd",
        ),
        (
            vec!["--cluster-ca-cert=ca", "--frontend=mode=grpc,uds=s"],
            "are given together",
        ),
        (
            vec![
                "--cluster-ca-cert=ca",
                "--frontend=selection=etcd,mode=grpc,uds=s,uds=t",
            ],
            "uds again",
        ),
        (
            vec![
                "--cluster-ca-cert=ca",
                "--frontend=selection=etcd,mode=http-connect,tcp=127.0.0.1:1",
            ],
            "--server-cert is missing",
        ),
        (
            vec!["--cluster-ca-cert=ca", "--proxy-strategies=zones"],
            "unknown proxy strategy",
        ),
        (
            vec!["--cluster-ca-cert=ca", "--proxy-strategies=zone,default"],
            "--server-zone and the strategy zone are given together",
        ),
        (
            vec![
                "--cluster-ca-cert=ca",
                "--enable-lease-controller",
                "--lease-label=a",
            ],
            "--lease-label: \"a\" is not key=value",
        ),
        (
            vec![
                "--cluster-ca-cert=ca",
                "--enable-lease-controller=true",
                "--server-id=S",
            ],
            "takes lower-case letters",
        ),
    ] {
        let error = refused(&flags).unwrap_err();
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}
