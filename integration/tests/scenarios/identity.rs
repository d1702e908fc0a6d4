//! Who is who: a source address is a claim, the interface that a packet comes in by is not.

use std::net::{IpAddr, SocketAddr};

use egret_integration::{Lookup, RecordType, Records, World, node, uninterrupted, upstream};

use super::deployment::{
    CLIENT_ALONE, PATIENCE, QUICK, REPAIRING_NOTHING, Setup, TestResult, eventually, only_names,
    without_source_check,
};

/// The answer would go to that other one, past its `ingress`.
pub(super) fn a_question_in_anothers_name_is_neither_answered_nor_recorded(world: &mut World) -> TestResult {
    let setting = Setup::of(only_names(&["*.example.test"])).and_pod("victim");
    let deployment = setting.enforcer(&REPAIRING_NOTHING).deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    let servers = [IpAddr::from(node::DNS), node::DNS_V6.into()];
    without_source_check(&deployment)?;
    let victim = deployment.pod("victim");
    let mut sockets = Vec::new();
    for (source, server) in victim.addresses().into_iter().zip(servers) {
        let (source, server) = (SocketAddr::new(source, 5353), SocketAddr::new(server, 53));
        let socket = victim.udp_socket_at(source)?;
        let question = Lookup::of("api.example.test", RecordType::A).to_vec();
        deployment.pod("client").send_udp_as(source, server, &question)?;
        sockets.push((socket, server));
    }
    // The kernel takes the node's own address as a source from outside in IPv6.
    let own = SocketAddr::new(node::DNS_V6.into(), 5353);
    let question = Lookup::of("api.example.test", RecordType::A).to_vec();
    deployment
        .pod("client")
        .send_udp_as(own, SocketAddr::new(node::DNS_V6.into(), 53), &question)?;
    eventually("dnsd has counted all of them", || {
        deployment.dnsd_counted("egret_dnsd_unattributed_total", &[("reason", "interface")]) == 3.0
    });
    // What it told comes before what it tells now.
    deployment
        .upstream()
        .set("mark.example.test", Records::addresses(["203.0.113.8"]));
    for (socket, server) in sockets {
        let question = Lookup::of("mark.example.test", RecordType::A).with_id(7).to_vec();
        socket.send_to(&question, server)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut reply = [0; 512];
        let length = uninterrupted(|| socket.recv(&mut reply))?;
        assert_eq!(
            reply[..2],
            [0, 7],
            "the victim hears what it asked, and nothing else"
        );
        assert!(length > question.len(), "and it is an answer");
    }
    assert_eq!(deployment.upstream().asked("api.example.test"), 0);
    deployment.assert_reaches("victim", "203.0.113.8");
    deployment.assert_refused("victim", "203.0.113.7");
    deployment.assert_refused("client", "203.0.113.7");
    assert!(
        !deployment.kernel_holds("victim", "203.0.113.7")
            && !deployment.kernel_holds("client", "203.0.113.7")
    );
    Ok(())
}

/// The node itself asks, as a hostNetwork pod or the kubelet does.
pub(super) fn a_question_that_belongs_to_no_pod_is_answered_and_not_recorded(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(only_names(&["*.example.test"])).deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    let server = format!("@{}", node::DNS);
    let dig = [
        "dig",
        "+short",
        "+tries=1",
        "+timeout=2",
        &server,
        "api.example.test",
        "A",
    ];
    let answer = deployment.world.node().run(&dig)?;
    assert_eq!(answer.stdout, "203.0.113.7\n", "{answer:?}");
    deployment.assert_refused("client", "203.0.113.7");
    assert_eq!(
        deployment.dnsd_counted("egret_dnsd_observations_total", &[]),
        0.0,
        "observations"
    );
    assert_eq!(
        deployment.dnsd_counted("egret_dnsd_unattributed_total", &[("reason", "local")]),
        1.0
    );
    Ok(())
}

/// The victim may reach the upstream, the client may not. The upstream's log shows whose packets got there.
pub(super) fn a_packet_in_anothers_name_gains_nothing(world: &mut World) -> TestResult {
    let deployment = Setup::of(CLIENT_ALONE).and_pod("victim").deploy(world)?;
    let (client, victim) = (deployment.pod("client"), deployment.pod("victim"));
    let servers = [upstream::ADDRESS.into(), upstream::ADDRESS_V6.into()];
    for (source, server) in victim.addresses().into_iter().zip(servers) {
        let to = SocketAddr::new(server, 53);
        let question = Lookup::of("stolen.example.test", RecordType::A);
        client.send_udp_as(SocketAddr::new(source, 5353), to, &question.to_vec())?;
        let attempt = client.connect_tcp_as(SocketAddr::new(source, 5354), to, QUICK);
        assert!(!attempt.is_connected(), "{attempt:?}");
        // Packets keep their order on this path: where the victim's is, the client's would be.
        deployment.ask_as(
            "victim",
            &Lookup::of("own.example.test", RecordType::A).at(server),
        );
        let own = client.look_up(&question.at(server).patience(QUICK));
        assert!(own.is_err(), "in its own name it gets nothing either: {own:?}");
    }
    assert!(
        deployment
            .upstream()
            .wait_until_asked("own.example.test", 2, PATIENCE)
    );
    assert_eq!(deployment.upstream().asked("stolen.example.test"), 0);
    Ok(())
}
