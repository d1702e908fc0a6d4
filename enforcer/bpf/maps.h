/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* What both sides of the backend share: the same layouts stand in src/backend/ebpf/layout.rs, and the
 * enforcer compares their sizes with those of the maps before it uses them.
 *
 * Everything that a program must find is found by its content, never by a number that user space hands
 * out: a set by the digest of what it stands for, a counter by the digest of its rule. So an enforcer that
 * starts again finds its maps as it would have written them. */
#ifndef EGRET_MAPS_H
#define EGRET_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Rules are stored in pieces of a list: a piece is looked up once for its rules. */
#define RULES_PER_CHUNK 64
#define MAX_CHUNKS 1024
#define MAX_LIST_CHUNKS 16384
#define MAX_OWN_ADDRESSES 4
#define MAX_MEMBERS 262144
#define MAX_COUNTERS 16384
#define MAX_UDP_FLOWS 65536
#define MAX_KNOWN_PODS 16384
#define MAX_NODE_ADDRESSES 4096
#define MAX_TRANSLATED 65536

#define DIGEST 16

/* A function that the verifier looks at once for a program, by itself, and not again with each way that leads to it. Its
 * pointers may be null for all it knows. */
#define GLOBAL __attribute__((noinline))

/* ACTION_WOULD_DENY: of counters alone. Policies in audit decide nothing. */
enum action { ACTION_ALLOW = 1, ACTION_DENY = 2, ACTION_PASS = 3, ACTION_WOULD_DENY = 4 };
enum peer {
	PEER_ANY = 1,
	PEER_ADDRESSES = 2,
	PEER_NETWORKS = 3,
	PEER_ADDRESS_PORTS = 4,
	PEER_OWN_NODE = 5,
	PEER_NETWORK_PORTS = 6,
	PEER_ITSELF = 7, /* the pod, where a Service leads back to it */
};

/* Who judges behind the pod's sockets, where the node has translated addresses of Services. */
enum behind {
	BEHIND_NOTHING = 0,
	BEHIND_SERVICES = 1, /* egret_services: what the pod sends to Services and to the node */
	BEHIND_FILTER = 2,   /* a packet filter, which judges everything: what cannot be told here passes */
};

/* Families as IANA numbers them for addresses (1 and 2); IPv4 fills the first word, the others are 0. A
 * v4-mapped address is an IPv4 address: the kernel sends IPv4 packets for it. */
#define FAMILY_V4 1
#define FAMILY_V6 2

struct address {
	__u32 family;
	__u32 words[4]; /* network order */
};

struct counter_key {
	__u8 tier;
	__u8 action;
	__u8 direction;
	__u8 unused;
	char digest[DIGEST]; /* of tier, policy, rule and action */
};

/* A list of rules by the digest of its content: pods with equal rules share it, and a pod goes from one
 * list to the next when its storage names the other digest. A missing chunk denies. */
struct list {
	char digest[DIGEST];
	__u32 count; /* of rules; 0: no policy selects the pod in this direction */
};

struct rule {
	struct counter_key counter;
	char set[DIGEST];
	__u32 next; /* where a Pass goes on: the first rule behind its tier */
	__u16 first_port;
	__u16 last_port;
	__u8 action;
	__u8 peer;
	__u8 transport; /* 0: every protocol and port; TRANSPORT_ICMP: ICMP or ICMPv6, by the family */
	__u8 unused;
	/* Of a Deny that stands for several rules: these, to find out which of them denies. */
	struct list attribution;
};

#define TRANSPORT_ICMP 1

struct chunk_key {
	char list[DIGEST];
	__u32 index;
};

struct chunk {
	struct rule rules[RULES_PER_CHUNK];
};

/* A pod, as its attach point knows it. All zero, which is what the kernel makes when a program is
 * attached, means that it is not programmed: everything is denied. */
struct pod {
	__u64 id; /* the inode of its cgroup, for keys of maps that all pods share */
	__u32 programmed;
	__u32 generation; /* changes when open flows are to be judged again; never 0 when programmed */
	struct list egress;
	struct list ingress;
	/* As they were with the policies in audit; without rules nothing is asked. */
	struct list audit_egress;
	struct list audit_ingress;
	__u32 own_count;
	struct address own[MAX_OWN_ADDRESSES];
	__u32 behind; /* enum behind */
};

struct member_key {
	char set[DIGEST];
	struct address address;
};

struct member {
	__u64 expires; /* nanoseconds of CLOCK_BOOTTIME; 0: never */
};

struct network_key {
	__u32 prefix; /* in bits, of set, family and address */
	char set[DIGEST];
	struct address address;
};

struct port_key {
	char set[DIGEST];
	struct address address;
	__u16 port; /* host order */
	__u8 transport;
	__u8 unused;
};

struct network_port_key {
	__u32 prefix; /* in bits, of all that follows */
	char set[DIGEST];
	__u16 port; /* host order */
	__u8 transport;
	__u8 unused;
	struct address address;
};

struct udp_key {
	__u64 pod;
	struct address peer;
	__u16 peer_port;  /* host order */
	__u16 local_port; /* host order */
	__u8 transport;
	__u8 unused[7];
};

struct udp_flow {
	__u64 seen;	  /* nanoseconds of CLOCK_BOOTTIME */
	__u32 generation; /* of the pod when its rules allowed the flow */
	__u8 opened_by;
	__u8 unused[3];
};

enum opened_by { OPENED_BY_POD = 1, OPENED_BY_PEER = 2 };

/* A socket whose connection was allowed and is not any more: user space ends it, so that its program hears of
 * it. When the map is full the oldest is forgotten; its packets are denied all the same. */
struct denied_socket {
	__u64 pod;
	struct address local;
	struct address peer;
	__u16 local_port; /* host order */
	__u16 peer_port;  /* host order */
	__u8 transport;
	__u8 unused[3];
};

/* Why something is denied, for the limit of events. */
struct reason {
	struct counter_key counter;
	__u32 is_revoked;
};

struct reason_told {
	__u64 second; /* of CLOCK_BOOTTIME */
	__u64 told;   /* in that second */
	__u64 withheld;
};

/* A denied call or packet. */
struct event {
	__u64 pod; /* the inode of its cgroup; 0: an unknown pod */
	struct counter_key counter;
	__u32 pid; /* of the process that called; 0 where a packet was denied */
	char command[16];
	struct address local;
	struct address peer;
	__u16 local_port; /* host order */
	__u16 peer_port;  /* host order */
	__u8 transport;
	__u8 icmp_type;
	__u8 is_outgoing; /* it was to leave the pod */
	__u8 is_revoked;  /* the flow was allowed before */
};

/* What the last verdict about a socket was, and about which peer. Another peer or generation is judged
 * again. */
struct socket_state {
	struct address peer;
	__u16 port; /* host order */
	__u8 transport;
	__u8 opened_by;
	__u32 generation;
	__u32 passed; /* the generation of the guard of unknown pods that lets it pass; 0: it was not asked */
};

/* What the guard of unknown pods knows besides pods. */
struct guard {
	__u64 node;	  /* cookie of the node's network namespace, whose pods (hostNetwork) pass; 0 is no namespace's */
	__u32 generation; /* changes when it lets fewer pods pass; 0: no socket remembers that it may */
	__u32 unused;
};

/* The storage belongs to the attach point, so a socket is judged as the pod in which it was made, whoever
 * holds it. bpf_get_current_cgroup_id() would ask the task instead: a socket that is handed to another
 * pod would be judged by that pod's rules. With a key of 8 octets all programs of an attach point share
 * one value, and an update swaps it as a whole (kernel/bpf/local_storage.c, cgroup_storage_update_elem). */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u64);
	__type(value, struct pod);
} egret_pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_LIST_CHUNKS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct chunk_key);
	__type(value, struct chunk);
} egret_rules SEC(".maps");

/* Belongs to the socket: it goes with it, and whoever holds the socket has it. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, int);
	__type(value, struct socket_state);
} egret_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MEMBERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct member_key);
	__type(value, struct member);
} egret_members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MEMBERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct network_key);
	__type(value, __u8);
} egret_networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MEMBERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct port_key);
	__type(value, __u8);
} egret_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MEMBERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct network_port_key);
	__type(value, __u8);
} egret_net_ports SEC(".maps");

/* Pods by their addresses, for what is judged behind the translation. The one of no address is that of clients outside. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_KNOWN_PODS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct address);
	__type(value, struct pod);
} egret_addressed SEC(".maps");

/* Addresses of Services, which the node translates behind the pods' sockets. Asked for pods alone that are judged there
 * as well. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_TRANSLATED);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct address);
	__type(value, __u8);
} egret_translated SEC(".maps");

/* The node's own addresses. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_NODE_ADDRESSES);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct address);
	__type(value, __u8);
} egret_node SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_COUNTERS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct counter_key);
	__type(value, __u64);
} egret_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_UDP_FLOWS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct udp_key);
	__type(value, struct udp_flow);
} egret_udp SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct denied_socket);
	__type(value, __u8);
} egret_denied SEC(".maps");

/* Pods that have programs and rules, by the inode of their cgroup: the guard of unknown pods lets them pass. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_KNOWN_PODS);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u64);
	__type(value, __u8);
} egret_known SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, struct guard);
} egret_guard SEC(".maps");

/* Denied calls and packets, for the reader of events. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} egret_events SEC(".maps");

/* How many events of one reason are told in a second; 0: none at all. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u32);
} egret_event_limit SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, struct reason);
	__type(value, struct reason_told);
} egret_reasons SEC(".maps");

/* TCP connections that came about: 0 opened by pods, 1 accepted by them. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__type(key, __u32);
	__type(value, __u64);
} egret_established SEC(".maps");

#endif
