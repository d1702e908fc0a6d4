use egret_policies::api::manifest;
use std::time::Instant;
fn time(what: &str, text: &str) {
    #[allow(clippy::disallowed_methods)]
    let now = Instant::now();
    let m = manifest::read(text, "f");
    println!("{what}: {} bytes, {} docs, {} skipped, {:?}, {:?}", text.len(), m.documents.len(), m.skipped.len(), now.elapsed(), m.problems.first().map(|p| p.to_string()));
}
#[test]
fn perf() {
    let pod = "  - metadata:\n      name: web-NNN\n      namespace: default\n      labels:\n        app: web\n        tier: front\n      annotations:\n        note: \"some longer text that is here to make the thing bigger and bigger\"\n    spec:\n      nodeName: n1\n      containers:\n      - name: c\n        image: registry.example.com/a/b:c\n        ports:\n        - containerPort: 80\n          name: http\n        env:\n        - name: A\n          value: b\n    status:\n      phase: Running\n      podIP: 10.0.0.1\n      podIPs:\n      - ip: 10.0.0.1\n";
    let mut text = String::from("apiVersion: v1\nkind: PodList\nitems:\n");
    let mut i = 0;
    while text.len() < 10_000_000 { text.push_str(&pod.replace("NNN", &i.to_string())); i += 1; }
    time("yaml", &text);
    let jpod = r#"{"metadata":{"name":"web-NNN","namespace":"default","labels":{"app":"web","tier":"front"},"annotations":{"note":"LONG"}},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"registry.example.com/a/b:c","ports":[{"containerPort":80,"name":"http"}],"env":[{"name":"A","value":"b"}]}]},"status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}"#.replace("LONG", &"x\\\"".repeat(3000));
    let mut text = String::from("{\"apiVersion\":\"v1\",\"kind\":\"PodList\",\"items\":[");
    let mut i = 0;
    while text.len() < 10_000_000 { if i>0 {text.push(',');} text.push_str(&jpod.replace("NNN", &i.to_string())); i += 1; }
    text.push_str("]}");
    time("json", &text);
    let mut text = String::from("{\n\t\"apiVersion\":\"v1\",\n\t\"kind\":\"PodList\",\n\t\"items\":[");
    let jpod = jpod.replace(&"x\\\"".repeat(3000), "a");
    let mut i = 0;
    while text.len() < 10_000_000 { if i>0 {text.push(',');} text.push_str(&jpod.replace("NNN", &i.to_string()).replace(",", ",\n\t\t")); i += 1; }
    text.push_str("]}");
    time("json small", &text);
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for i in 1..30 { bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i-1); 10].join(","))); }
    time("bomb", &bomb);
    let many = format!("a: &a [{}]\n", "x,".repeat(90_000)) + &(0..1000).map(|i| format!("k{i}: *a\n")).collect::<String>();
    time("wide bomb", &many);
    let merge = String::from("a: &a {x: 1}\n") + &(0..30000).map(|i| format!("k{i}: {{<<: *a, y{i}: 2}}\n")).collect::<String>();
    time("merge", &merge);
    time("deep flow", &"[".repeat(5_000_000));
    time("deep map", &"{a: ".repeat(1_000_000));
    time("deep block", &(0..4000).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>());
    time("many docs", &"---\n".repeat(2_500_000));
    time("many scalars", &"- a\n".repeat(2_500_000));
    time("flow scalars", &format!("[{}]", "a,".repeat(5_000_000)));
    time("one scalar", &format!("a: \"{}\"", "x".repeat(10_000_000)));
    time("plain scalar", &format!("a: {}", "x ".repeat(5_000_000)));
    time("block scalar", &format!("a: |\n{}", " x\n".repeat(3_000_000)));
    time("comments", &"# x\n".repeat(2_500_000));
    time("many keys", &(0..500_000).map(|i| format!("k{i}: v\n")).collect::<String>());
    time("dup keys", &"k: v\n".repeat(2_000_000));
    time("anchors", &(0..500_000).map(|i| format!("- &a{i} v\n")).collect::<String>());
    time("broken", &"a: [\n---\n".repeat(1_000_000));
    time("spaces", &" ".repeat(10_000_000));
    time("newlines", &"\n".repeat(10_000_000));
    time("tabs", &"\t".repeat(10_000_000));
    time("quotes", &"'".repeat(10_000_000));
    time("keys?", &"? ".repeat(5_000_000));
    time("dashes", &"- ".repeat(5_000_000));
    time("colons", &": ".repeat(5_000_000));
    time("bars", &"a: |\n".repeat(2_000_000));
    time("pct", &"%TAG ! x\n".repeat(1_000_000));
}
