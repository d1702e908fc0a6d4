//! node-local-dns by its public manifest, with upstream's program, then dnsd in its place, then upstream's again: while pods query.

use std::{fs, net::SocketAddr, path::Path};

use crate::peers::go_module;

use super::{
    Failure, NODES,
    image::{EGRET, TOOLS},
    network::Network,
    story::{ROLLED_OUT_WITHIN, Story},
    until,
};

/// Has the add-on's manifest.
const KUBERNETES: &str = "k8s.io/kubernetes@v1.36.3";
const MANIFEST: &str = "cluster/addons/dns/nodelocaldns/nodelocaldns.yaml";
/// The same with what dnsd needs.
const OWN_MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/node-local-dns/node-local-dns.yaml"
);
const WORKLOAD: [(&str, &str); 1] = [("kube-system", "daemonset/node-local-dns")];
/// Of a change on all nodes.
const LOST_AT_MOST: usize = 10 * NODES.len();
/// Answered queries before and after each change.
const QUERIES: usize = 200;

pub(super) fn play(story: &mut Story<'_>) -> Result<(), Failure> {
    story.screen.heading("node-local-dns");
    let network = story.cluster.network;
    let add_on = story.kubectl.folder.join("nodelocaldns.yaml");
    fs::write(&add_on, manifest(network)?)?;
    let add_on = add_on.display().to_string();
    let first = story.kubectl.folder.join("first.yaml");
    let later = story.kubectl.folder.join("node-local-dns.yaml");
    let text = fill(Path::new(OWN_MANIFEST), network)?;
    fs::write(&later, &text)?;
    let one_by_one = text
        .replace("maxSurge: 1", "maxSurge: 0")
        .replace("maxUnavailable: 0", "maxUnavailable: 1");
    fs::write(&first, one_by_one)?;
    let (first, later) = (first.display().to_string(), later.display().to_string());
    story.screen.typed("$ kubectl", "create -f nodelocaldns.yaml");
    story.kubectl.run(&["create", "-f", &add_on])?;
    runs(story, TOOLS)?;
    let traffic = story.traffic(false)?;
    story.more_traffic(&traffic, QUERIES)?;
    runs(story, TOOLS)?;
    let egret = format!("{EGRET}:{}", env!("CARGO_PKG_VERSION"));
    let mut times = vec![("", traffic.now())];
    for (title, image, shown, files) in [
        (
            "dnsd in its place, while pods query",
            &*egret,
            // Then both could run at once, and the next upgrade lets them.
            "sed 's/maxSurge: 1/maxSurge: 0/; s/maxUnavailable: 0/maxUnavailable: 1/' node-local-dns.yaml | kubectl replace -f -; kubectl replace -f node-local-dns.yaml",
            [&*first, &*later],
        ),
        (
            "node-local-dns again, while pods query",
            TOOLS,
            "kubectl replace -f nodelocaldns.yaml",
            [&*add_on, &*add_on],
        ),
    ] {
        story.screen.heading(title);
        let before = traffic.seen();
        story.screen.typed("$", shown);
        for file in files {
            story.kubectl.run(&["replace", "-f", file])?;
            runs(story, image)?;
        }
        let after = story.more_traffic(&traffic, QUERIES)?;
        runs(story, image)?;
        story.screen.line(&format!(
            "{} queries answered meanwhile",
            after.answered - before.answered
        ));
        times.push((title, traffic.now()));
    }
    story.screen.typed("$ kubectl", "delete -f nodelocaldns.yaml");
    story.kubectl.run(&["delete", "-f", &add_on])?;
    story.more_traffic(&traffic, QUERIES)?;
    times.push(("without it", traffic.now()));
    let seen = traffic.stop();
    let lost = times
        .windows(2)
        .map(|pair| (pair[1].0, seen.lost_between(pair[0].1, pair[1].1)))
        .collect::<Vec<_>>();
    for (title, lost) in &lost {
        story.screen.line(&format!("{title}: {lost} lost"));
    }
    // What a program has received when it ends on a node may get no answer. A gap would lose a hundred in a second.
    let is_as_expected = lost.iter().all(|(_, lost)| *lost <= LOST_AT_MOST) && seen.wrong.is_empty();
    story.conclude(is_as_expected, &seen.to_string());
    Ok(())
}

/// Waits until a pod of this image is ready on each node. One that has ended and was started again counts as a failure: the add-on has no readiness probe.
fn runs(story: &Story<'_>, image: &str) -> Result<(), Failure> {
    story.roll_out(&WORKLOAD)?;
    let wanted = format!("{image} true 0");
    let columns = "jsonpath={range .items[*]}{.spec.containers[0].image} {.status.containerStatuses[0].ready} \
                   {.status.containerStatuses[0].restartCount}{'\\n'}{end}";
    let ask = [
        "pods",
        "-n",
        "kube-system",
        "-l",
        "k8s-app=node-local-dns",
        "-o",
        columns,
    ];
    let what = format!("all pods of node-local-dns run {image}");
    until(story.stop, &what, ROLLED_OUT_WITHIN, || {
        let pods = story.kubectl.get(&ask)?;
        if pods.lines().eq([&*wanted; NODES.len()]) {
            Ok(true)
        } else {
            Err(pods.into())
        }
    })
}

/// A manifest, filled in as the add-on's page says.
fn fill(path: &Path, network: Network) -> Result<String, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let local = network.local_dns();
    let health = SocketAddr::new(local, 8080).to_string();
    Ok(text
        .replace("__PILLAR__LOCAL__DNS__:8080", &health)
        .replace("__PILLAR__LOCAL__DNS__", &local.to_string())
        .replace("__PILLAR__DNS__SERVER__", &network.dns()[0].to_string())
        .replace("__PILLAR__DNS__DOMAIN__", "cluster.local"))
}

/// The public manifest, with upstream's program in the image of this cluster.
fn manifest(network: Network) -> Result<String, Failure> {
    let text = fill(&go_module(KUBERNETES)?.join(MANIFEST), network)?;
    let image = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("image: "))
        .ok_or("the manifest of node-local-dns names no image")?
        .to_owned();
    Ok(text.replace(
        &format!("image: {image}"),
        &format!(
            "image: {TOOLS}\n        command: [sh, -c, '{}', sh]",
            entry(network)
        ),
    ))
}

/// Starts upstream's program. Not every kernel has interfaces of the type dummy, and one that is there is taken as it is. The program ends when it listens at
/// an address of IPv6 that the kernel still checks for another owner.
fn entry(network: Network) -> String {
    format!(
        "ip link add nodelocaldns type dummy || ip link add nodelocaldns type ifb; \
         for address in {} {}; do ip address add $address dev nodelocaldns; done; \
         while ip address show dev nodelocaldns | busybox grep -q tentative; do sleep 0.1; done; exec /node-cache \"$@\"",
        network.local_dns(),
        network.dns()[0]
    )
}
