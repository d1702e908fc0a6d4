//! The Corefile of the add-on in kubernetes/kubernetes (cluster/addons/dns/nodelocaldns), with its variables
//! filled in as the installer and node-cache fill them in.

const TEXT: &str = "
cluster.local:53 {
    errors
    cache {
            success 9984 30
            denial 9984 5
    }
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health __PILLAR__LOCAL__DNS__:8080
    }
in-addr.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
ip6.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
.:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    }
";

pub(crate) fn corefile() -> String {
    [
        ("__PILLAR__LOCAL__DNS__", "169.254.20.10"),
        ("__PILLAR__DNS__SERVER__", "10.96.0.10"),
        ("__PILLAR__CLUSTER__DNS__", "10.96.104.4"),
        ("__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf"),
    ]
    .into_iter()
    .fold(TEXT.to_owned(), |text, (variable, value)| {
        text.replace(variable, value)
    })
}
