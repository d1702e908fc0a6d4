//! What breaks watches: by a real API server where it can be brought to do it, else by a proxy in front of one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure how long real packets and processes take"
)]

use std::{
    fmt::Write as _,
    fs,
    time::{Duration, Instant},
};

use egret_integration::{ApiProxy, ApiRequest, Daemon, Fate, Kubernetes, Streams, World, within};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(60);
/// A connection that is dead without a word, and a token that was replaced, are noticed by then.
const LONG_PATIENCE: Duration = Duration::from_secs(240);
/// The shortest pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(800);
const KIND: &str = "networkpolicies";

/// The pod `client` may send to this address and to no other.
fn only(name: &str, address: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: {name}, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: client}}}}
  policyTypes: [Egress]
  egress: [{{to: [{{ipBlock: {{cidr: {address}/32}}}}]}}]
"
    )
}

struct Cluster {
    // In this order: what runs in the world ends before it does.
    enforcer: Daemon,
    proxy: ApiProxy,
    kubernetes: Kubernetes,
    world: World,
}

impl Cluster {
    /// None where a world or an API server cannot be had, which is said.
    fn start(decide: impl FnMut(&ApiRequest) -> Fate + Send + 'static) -> Option<Self> {
        Self::start_by("token: tests", decide)
    }

    fn start_by(user: &str, decide: impl FnMut(&ApiRequest) -> Fate + Send + 'static) -> Option<Self> {
        let world = World::or_skip()?;
        let world = world.with_pod("client").unwrap();
        let kubernetes = Kubernetes::start(&world).unwrap()?;
        kubernetes.apply_world(&world).unwrap();
        let proxy = ApiProxy::start(&world, &kubernetes).unwrap();
        let user = user.replace("FOLDER", &world.files().display().to_string());
        proxy.write_kubeconfig(&user).unwrap();
        proxy.decide(decide);
        let spec = kubernetes.enforcer_by(&world, "memory", &proxy.kubeconfig());
        let enforcer = world.launch(spec).unwrap();
        Some(Self {
            enforcer,
            proxy,
            kubernetes,
            world,
        })
    }

    fn apply(&self, yaml: &str) -> TestResult {
        self.kubernetes.apply_text(&self.world, yaml)
    }

    fn delete(&self, policy: &str) -> TestResult {
        self.kubernetes
            .kubectl(&self.world, &["delete", "networkpolicy", policy])
    }

    fn is_ready(&self) -> bool {
        self.enforcer
            .get("/readyz")
            .is_ok_and(|(status, _)| status == 200)
    }

    fn is_in_force(&self, policy: &str) -> bool {
        is_in_force(&self.enforcer, policy)
    }

    /// How long apart the requests of a kind are that are like this.
    fn gaps(&self, plural: &str, of: fn(&ApiRequest) -> bool) -> Vec<Duration> {
        let requests = self.proxy.requests(plural);
        let times: Vec<Instant> = requests
            .iter()
            .filter(|request| of(request))
            .map(|one| one.at)
            .collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

fn is_in_force(enforcer: &Daemon, policy: &str) -> bool {
    let rules = enforcer.get("/rules").map(|(_, page)| page).unwrap_or_default();
    rules.contains(&format!("NetworkPolicy/default/{policy}"))
}

fn answer(status: u16, headers: &'static str, body: &str) -> Fate {
    Fate::Answer {
        status,
        headers,
        body: body.to_owned(),
    }
}

/// A stream with an ERROR event.
fn error_event(code: u16) -> Fate {
    let event = format!(
        "{{\"type\":\"ERROR\",\"object\":{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"told so\",\"code\":{code}}}}}\n"
    );
    answer(200, "", &event)
}

fn refusal(code: u16, headers: &'static str) -> Fate {
    let status = format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"told so\",\"code\":{code}}}"
    );
    answer(code, headers, &status)
}

fn is_ordinary_watch(request: &ApiRequest) -> bool {
    request.is_watch() && !request.is_streaming_list()
}

fn is_list(request: &ApiRequest) -> bool {
    !request.is_watch()
}

/// Without streaming lists, so that each attempt is a list.
fn fails_by(
    request: &ApiRequest,
    is_so: impl FnOnce(&ApiRequest) -> bool,
    fate: impl FnOnce() -> Fate,
) -> Fate {
    if !request.is_of(KIND) {
        return Fate::Pass;
    }
    if request.is_streaming_list() {
        return refusal(400, "");
    }
    if is_so(request) { fate() } else { Fate::Pass }
}

#[test]
fn an_api_server_that_fails_is_asked_ever_more_seldom_and_not_before_it_says() -> TestResult {
    let too_many = |request: &ApiRequest| fails_by(request, is_list, || refusal(429, "Retry-After: 9\r\n"));
    let Some(cluster) = Cluster::start(too_many) else {
        return Ok(());
    };
    let lists = || {
        let requests = cluster.proxy.requests(KIND);
        requests.iter().filter(|request| is_list(request)).count()
    };
    within(PATIENCE, "two lists", || lists() >= 2);
    let gaps = cluster.gaps(KIND, is_list);
    assert!(gaps[0] >= Duration::from_secs(9), "{gaps:?}");

    cluster
        .proxy
        .decide(|request| fails_by(request, is_list, || refusal(500, "")));
    cluster.proxy.forget_requests();
    within(LONG_PATIENCE, "three lists", || lists() >= 3);
    let gaps = cluster.gaps(KIND, is_list);
    // After 0.8 and 1.6 s, each with up to as much again, come 3.2 and 6.4 s.
    assert!(gaps.iter().all(|gap| *gap >= FIRST_PAUSE * 4), "{gaps:?}");
    assert!(!cluster.is_ready());

    cluster.proxy.decide(|_| Fate::Pass);
    within(LONG_PATIENCE, "it is ready", || cluster.is_ready());
    Ok(())
}

/// Lists are answered, and each watch ends at once: by an ERROR event, or without a word.
#[test]
fn a_watch_that_ends_at_once_is_not_begun_again_at_once() -> TestResult {
    let failing: [fn() -> Fate; 3] = [|| error_event(500), || error_event(410), || answer(200, "", "")];
    let Some(cluster) = Cluster::start(|_| Fate::Pass) else {
        return Ok(());
    };
    for (number, fate) in failing.into_iter().enumerate() {
        within(LONG_PATIENCE, "it is ready", || cluster.is_ready());
        // Another kind fails as well: each list of one must not wake the other.
        cluster.proxy.decide(move |request| {
            let is_of_both = request.is_of(KIND) || request.is_of("services");
            if is_of_both && request.is_watch() {
                fate()
            } else {
                Fate::Pass
            }
        });
        cluster.proxy.forget_requests();
        cluster.proxy.streams(Streams::End);
        std::thread::sleep(Duration::from_millis(50));
        cluster.proxy.streams(Streams::Flow);
        let watches = || {
            cluster
                .proxy
                .requests(KIND)
                .iter()
                .filter(|one| one.is_watch())
                .count()
        };
        within(LONG_PATIENCE, "four watches", || watches() >= 4);
        let gaps = cluster.gaps(KIND, ApiRequest::is_watch);
        let quick = gaps.iter().filter(|gap| **gap < FIRST_PAUSE / 2).count();
        // Once everything is listed without a pause, if the API server says that a watch has expired; and the watches of the other
        // kinds, which come back at the same moment, say that the API server is back.
        assert!(quick <= 2, "{number}: {gaps:?}");
        cluster.proxy.decide(|_| Fate::Pass);
        let policy = format!("after-{number}");
        cluster.apply(&only(&policy, "203.0.113.7"))?;
        within(LONG_PATIENCE, "the change is in force", || {
            cluster.is_in_force(&policy)
        });
    }
    Ok(())
}

#[test]
fn a_stream_that_is_cut_in_the_middle_of_an_object_loses_nothing() -> TestResult {
    let Some(cluster) = Cluster::start(|_| Fate::Pass) else {
        return Ok(());
    };
    within(PATIENCE, "it is ready", || cluster.is_ready());
    cluster.apply(&only("before", "203.0.113.7"))?;
    within(PATIENCE, "it is in force", || cluster.is_in_force("before"));
    cluster.proxy.forget_requests();
    cluster.proxy.streams(Streams::CutNext);
    cluster.apply(&only("cut", "203.0.113.8"))?;
    within(PATIENCE, "it is in force", || cluster.is_in_force("cut"));
    let requests = cluster.proxy.requests(KIND);
    assert!(requests.iter().any(is_ordinary_watch), "{requests:?}");
    Ok(())
}

/// The connection stays, and nothing comes any more.
#[test]
fn a_connection_that_is_dead_without_a_word_is_given_up() -> TestResult {
    let Some(cluster) = Cluster::start(|_| Fate::Pass) else {
        return Ok(());
    };
    within(PATIENCE, "it is ready", || cluster.is_ready());
    cluster.proxy.streams(Streams::Freeze);
    cluster.apply(&only("frozen", "203.0.113.7"))?;
    within(LONG_PATIENCE, "it is in force", || cluster.is_in_force("frozen"));
    Ok(())
}

#[test]
fn a_watch_goes_on_from_the_last_bookmark() -> TestResult {
    let mut watches = 0;
    let Some(cluster) = Cluster::start(move |request| {
        fails_by(
            request,
            |request| {
                watches += usize::from(request.is_watch());
                request.is_watch() && watches == 1
            },
            || {
                let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"NetworkPolicy\",\"apiVersion\":\"networking.k8s.io/v1\",\"metadata\":{\"resourceVersion\":\"17\",\"creationTimestamp\":null}}}\n";
                answer(200, "", bookmark)
            },
        )
    }) else {
        return Ok(());
    };
    let watches = || -> Vec<ApiRequest> {
        let requests = cluster.proxy.requests(KIND).into_iter();
        requests.filter(is_ordinary_watch).collect()
    };
    within(PATIENCE, "two watches", || watches().len() >= 2);
    let second = watches().swap_remove(1);
    assert!(second.target.contains("resourceVersion=17"), "{second:?}");
    Ok(())
}

#[test]
fn a_list_that_expires_between_two_pages_is_listed_from_the_start() -> TestResult {
    let mut pages = 0;
    let Some(cluster) = Cluster::start(move |request| {
        fails_by(
            request,
            |request| {
                let is_next = request.target.contains("continue=");
                pages += usize::from(is_next);
                is_next && pages == 1
            },
            || refusal(410, ""),
        )
    }) else {
        return Ok(());
    };
    within(PATIENCE, "it is ready", || cluster.is_ready());
    let mut text = String::new();
    for number in 0..600 {
        writeln!(text, "---\n{}", only(&format!("p{number:03}"), "203.0.113.7"))?;
    }
    let path = cluster.world.files().join("many.yaml");
    fs::write(&path, text)?;
    let path = path.display().to_string();
    cluster
        .kubernetes
        .kubectl(&cluster.world, &["create", "-f", &path])?;
    // One of the first page goes while it is away.
    let mut enforcer = cluster.enforcer;
    enforcer.kill()?;
    cluster.proxy.forget_requests();
    let enforcer = cluster.world.launch(enforcer.spec().clone())?;
    within(PATIENCE, "all are in force", || {
        is_in_force(&enforcer, "p000") && is_in_force(&enforcer, "p599")
    });
    let lists = cluster.proxy.requests(KIND).into_iter().filter(is_list).count();
    assert!(lists >= 4, "a page, one that expired, and both: {lists}");
    Ok(())
}

#[test]
fn a_pod_that_cannot_be_decoded_leaves_the_others_alone() -> TestResult {
    let decide = |request: &ApiRequest| match request {
        request if !request.is_of("pods") => Fate::Pass,
        request if request.is_streaming_list() => refusal(400, ""),
        request if request.is_watch() => Fate::Pass,
        _ => Fate::Rewrite(|list| {
            let broken = "{\"metadata\":{\"name\":\"broken\",\"namespace\":\"default\",\"uid\":\"1\",\"resourceVersion\":\"1\"},\"spec\":{\"nodeName\":7,\"containers\":\"none\"},\"status\":[]}";
            list.replacen("\"items\":[", &format!("\"items\":[{broken},"), 1)
        }),
    };
    let Some(cluster) = Cluster::start(decide) else {
        return Ok(());
    };
    within(PATIENCE, "it is ready", || cluster.is_ready());
    cluster.apply(&only("beside", "203.0.113.7"))?;
    within(PATIENCE, "it is in force", || cluster.is_in_force("beside"));
    let log = cluster.enforcer.log();
    assert!(log.contains("Pod/default/broken"), "{log}");
    Ok(())
}

#[test]
fn a_token_that_is_replaced_in_its_file_is_read_again() -> TestResult {
    let world_token = |token: &'static str| {
        move |request: &ApiRequest| {
            if request.token.as_deref() == Some(token) {
                Fate::Pass
            } else {
                refusal(401, "")
            }
        }
    };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("token");
    fs::write(&file, "first")?;
    let user = format!("tokenFile: {}", file.display());
    let Some(cluster) = Cluster::start_by(&user, world_token("first")) else {
        return Ok(());
    };
    within(PATIENCE, "it is ready", || cluster.is_ready());
    cluster.proxy.decide(world_token("second"));
    cluster.proxy.streams(Streams::End);
    std::thread::sleep(Duration::from_millis(50));
    cluster.proxy.streams(Streams::Flow);
    within(PATIENCE, "it says so", || {
        let (status, page) = cluster.enforcer.get("/readyz").unwrap();
        status == 200 && page.contains("cannot be read")
    });
    fs::write(&file, "second")?;
    cluster.apply(&only("later", "203.0.113.7"))?;
    within(LONG_PATIENCE, "it is in force", || cluster.is_in_force("later"));
    Ok(())
}

/// The watch stands at a revision that the restored store has not reached: the API server says nothing of that.
#[test]
fn an_etcd_that_was_restored_from_a_backup_is_listed_anew() -> TestResult {
    let Some(mut cluster) = Cluster::start(|_| Fate::Pass) else {
        return Ok(());
    };
    within(PATIENCE, "it is ready", || cluster.is_ready());
    cluster.apply(&only("of-backup", "203.0.113.7"))?;
    cluster.kubernetes.back_up()?;
    cluster.kubernetes.start_again(&cluster.world)?;
    cluster.delete("of-backup")?;
    for number in 0..20 {
        cluster.apply(&only("since", &format!("203.0.113.{number}")))?;
    }
    within(LONG_PATIENCE, "what is newer is in force", || {
        cluster.is_in_force("since") && !cluster.is_in_force("of-backup")
    });
    cluster.kubernetes.restore()?;
    cluster.kubernetes.start_again(&cluster.world)?;
    within(LONG_PATIENCE, "what the backup has is in force", || {
        cluster.is_in_force("of-backup") && !cluster.is_in_force("since")
    });
    cluster.apply(&only("after", "203.0.113.7"))?;
    within(PATIENCE, "a change is in force", || cluster.is_in_force("after"));
    Ok(())
}
