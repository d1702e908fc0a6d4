// SPDX-License-Identifier: Apache-2.0
/* Answers DNS queries of a pod where its packets enter the node, with what dnsd answered to the same query a moment ago
 * (docs/decisions/0072). Everything else goes on to dnsd: each doubt does, so nothing here is an error.
 *
 * The layouts stand in src/kernel_answers/layout.rs as well. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define DNS_PORT 53
#define HEADER 12
/* Type and class; and an OPT without options (RFC 6891, section 6.1.2). */
#define QUESTION_END 4
#define WITH_OPT 15
#define MAX_NAME 255
#define MAX_QUERY (HEADER + MAX_NAME + WITH_OPT)
#define MAX_REPLY 512
#define MAX_TTLS 16

/* A query as it stands in the packet, but for its id and the case of its name. */
struct question {
	__u32 interface;
	__u16 length; /* of the message */
	__u8 version; /* of IP */
	__u8 name_length;
	__u8 client[16];
	__u8 server[16];
	__be16 flags;
	__be16 additional; /* records: an OPT or none */
	__u8 tail[20];	   /* type, class, OPT; then zeros */
	__u8 name[256];	   /* in lower case; then zeros */
};

struct answer {
	__u64 expires;	  /* CLOCK_BOOTTIME, in nanoseconds */
	__u64 arrived;	  /* CLOCK_BOOTTIME, in milliseconds, as dnsd counts */
	__u64 generation; /* of dnsd's state when it answered */
	__u32 series;	  /* which metrics count it */
	__u16 length;
	__u16 ttl_count;
	__u16 ttl_at[MAX_TTLS];
	__u8 message[MAX_REPLY]; /* with the TTLs that it arrived with */
};

/* A pod that the enforcer lets ask dnsd. */
struct permit_key {
	__u32 version;
	__u8 address[16];
};

struct scratch {
	struct question question;
	__u8 query[320];
	__u8 reply[MAX_REPLY + 16];
};

/* The headers of IP are aligned. */
struct headers_v4 {
	__u16 unused;
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
};

struct headers_v6 {
	__u16 unused;
	struct ethhdr ethernet;
	struct ipv6hdr ip;
	struct udphdr udp;
};

#define SIZE_V4 (sizeof(struct headers_v4) - sizeof(__u16))
#define SIZE_V6 (sizeof(struct headers_v6) - sizeof(__u16))

/* An answer, and what counts it. */
struct found {
	const struct answer *answer;
	__u64 *verdict; /* of the enforcer's rules */
	__u32 length;	/* of the reply; 0: dnsd answers */
};

/* Made by dnsd, and found by these names. */
struct map {
	int unused;
};

struct map answers SEC("maps"), generation SEC("maps"), series SEC("maps"), scratch SEC("maps");
/* The enforcer writes and reads these. */
struct map permits SEC("maps"), verdicts SEC("maps");

#define LOOKUP(map, key) bpf_map_lookup_elem(&(map), key)

static __always_inline __u64 lower_case(__u64 word)
{
	const __u64 low = 0x7f7f7f7f7f7f7f7fULL, high = 0x8080808080808080ULL;
	__u64 from_a = (word & low) + 0x3f3f3f3f3f3f3f3fULL, behind_z = (word & low) + 0x2525252525252525ULL;

	return word | ((from_a ^ behind_z) & ~word & high) >> 2;
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Reads the message behind `offset` into the scratch. Returns its length; 0 where dnsd has to read it. */
static __always_inline __u32 read_message(struct __sk_buff *skb, __u32 offset, __u32 length, struct scratch *to)
{
	struct question *question = &to->question;
	__u64 *name = (__u64 *)question->name;
	__be16 header[HEADER / 2];
	__u32 name_length, tail, i;

	if (length < HEADER + 1 + QUESTION_END || length > MAX_QUERY)
		return 0;
	if (bpf_skb_load_bytes(skb, offset, header, HEADER))
		return 0;
	if (header[2] != bpf_htons(1) || header[3] || header[4])
		return 0;
	question->flags = header[1];
	question->additional = header[5];
	question->length = length;
	__builtin_memset(question->tail, 0, sizeof(question->tail));
	if (!header[5])
		tail = QUESTION_END;
	else if (header[5] == bpf_htons(1) && length > HEADER + WITH_OPT)
		tail = WITH_OPT;
	else
		return 0;
	name_length = length - HEADER - tail;
	if (name_length == 0 || name_length > MAX_NAME)
		return 0;
	question->name_length = name_length;
	for (i = 0; i < sizeof(question->name) / 8; i++)
		name[i] = 0;
	/* The verifier forgets what the compiler knows. */
	asm volatile("%0 &= 0xff" : "+r"(name_length));
	if (name_length == 0 || bpf_skb_load_bytes(skb, offset + HEADER, name, name_length))
		return 0;
	for (i = 0; i < sizeof(question->name) / 8; i++) {
		if (i * 8 >= name_length)
			break;
		name[i] = lower_case(name[i]);
	}
	if (tail == QUESTION_END) {
		if (bpf_skb_load_bytes(skb, offset + length - QUESTION_END, question->tail, QUESTION_END))
			return 0;
	} else if (bpf_skb_load_bytes(skb, offset + length - WITH_OPT, question->tail, WITH_OPT)) {
		return 0;
	}
	return length;
}

/* Writes the reply in the scratch, for the query in the packet. Returns its length, or 0. */
static __always_inline __u32 write_reply(struct __sk_buff *skb, __u32 offset, const struct answer *answer, __u64 now,
					 struct scratch *to)
{
	const __u64 *from = (const __u64 *)answer->message;
	__u32 length = answer->length, name_length = to->question.name_length, i;
	__u32 age = (now / 1000000 - answer->arrived) / 1000;
	__u64 *reply = (__u64 *)to->reply;

	if (length < HEADER || length > MAX_REPLY)
		return 0;
	/* In words: what is behind the end is zero. */
	for (i = 0; i < MAX_REPLY / 8; i++) {
		if (i * 8 >= length)
			break;
		reply[i] = from[i];
	}
	asm volatile("%0 &= 0xff" : "+r"(name_length));
	if (name_length == 0 || bpf_skb_load_bytes(skb, offset, to->reply, 2) ||
	    bpf_skb_load_bytes(skb, offset + HEADER, to->reply + HEADER, name_length))
		return 0;
	for (i = 0; i < MAX_TTLS; i++) {
		__u32 at, seconds;

		if (i >= answer->ttl_count)
			break;
		at = answer->ttl_at[i] & (MAX_REPLY - 1);
		seconds = (__u32)to->reply[at] << 24 | (__u32)to->reply[at + 1] << 16 | (__u32)to->reply[at + 2] << 8 |
			  to->reply[at + 3];
		seconds = seconds > age ? seconds - age : 0;
		to->reply[at] = seconds >> 24;
		to->reply[at + 1] = seconds >> 16;
		to->reply[at + 2] = seconds >> 8;
		to->reply[at + 3] = seconds;
	}
	return length;
}

/* What dnsd answered to this query, if it would answer the same now. */
static __always_inline const struct answer *find(const struct scratch *in, __u64 now)
{
	const struct answer *answer;
	const __u32 zero = 0;
	const __u64 *present;

	answer = LOOKUP(answers, &in->question);
	present = LOOKUP(generation, &zero);
	if (!answer || !present || answer->generation != *present || now >= answer->expires)
		return 0;
	return answer;
}

/* The verdict that counts the query; none where the enforcer does not permit it. */
static __always_inline __u64 *permitted(const struct question *question)
{
	struct permit_key key = { .version = question->version };
	const __u32 *verdict;

	__builtin_memcpy(key.address, question->client, sizeof(key.address));
	verdict = LOOKUP(permits, &key);
	return verdict ? LOOKUP(verdicts, verdict) : 0;
}

/* The change of the checksum by the new message. A checksum that was wrong stays so: the reply is dropped where the query would
 * have been. */
static __always_inline __s64 changed_by_message(struct scratch *in, __u32 before, __u32 after)
{
	__s64 sum;

	before = (before + 3) & ~3U;
	after = (after + 3) & ~3U;
	asm volatile("%0 &= 0x1ff" : "+r"(before));
	asm volatile("%0 &= 0x3ff" : "+r"(after));
	if (before > sizeof(in->query) || after > MAX_REPLY)
		return -1;
	sum = bpf_csum_diff((__be32 *)in->query, before, 0, 0, 0);
	if (sum < 0)
		return -1;
	return bpf_csum_diff(0, 0, (__be32 *)in->reply, after, sum);
}

static __always_inline int load_query(struct __sk_buff *skb, __u32 offset, __u32 length, struct scratch *to)
{
	__u32 last = length & ~3U;

	asm volatile("%0 &= 0x1ff" : "+r"(last));
	asm volatile("%0 &= 0x1ff" : "+r"(length));
	if (last > sizeof(to->query) - 4 || length == 0 || length > sizeof(to->query))
		return -1;
	*(__u32 *)(to->query + last) = 0;
	return bpf_skb_load_bytes(skb, offset, to->query, length);
}

static __always_inline int store_reply(struct __sk_buff *skb, __u32 offset, __u32 length, const struct scratch *from)
{
	asm volatile("%0 &= 0x3ff" : "+r"(length));
	if (length == 0 || length > MAX_REPLY)
		return -1;
	return bpf_skb_store_bytes(skb, offset, from->reply, length, BPF_F_INVALIDATE_HASH);
}

static __always_inline void swap_ends(struct ethhdr *ethernet, struct udphdr *udp)
{
	__u8 address[ETH_ALEN];
	__be16 port = udp->source;

	__builtin_memcpy(address, ethernet->h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, ethernet->h_source, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, address, ETH_ALEN);
	udp->source = udp->dest;
	udp->dest = port;
}

/* Counted before it is sent: who has the answer finds it counted. */
static __always_inline void count(const struct found *found)
{
	__u32 index = found->answer->series;
	__u64 *hits = LOOKUP(series, &index);

	if (hits)
		__sync_fetch_and_add(hits, 1);
	__sync_fetch_and_add(found->verdict, 1);
}

/* Turns the packet into the reply: `headers` are those of the reply, but for the checksum of UDP, which is that of the query. */
static __always_inline int reply_with(struct __sk_buff *skb, struct scratch *in, const void *headers, __u32 size,
				      __u32 before, const struct found *found)
{
	__u32 checksum = size - sizeof(struct udphdr) + __builtin_offsetof(struct udphdr, check), after = found->length;
	__be16 length[2] = { bpf_htons(before + sizeof(struct udphdr)), bpf_htons(after + sizeof(struct udphdr)) };
	__s64 change;

	if (load_query(skb, size, before, in))
		return TC_ACT_UNSPEC;
	change = changed_by_message(in, before, after);
	if (change < 0)
		return TC_ACT_UNSPEC;
	if (before != after && bpf_skb_change_tail(skb, size + after, 0))
		return TC_ACT_UNSPEC;
	/* From here on it is no query any more. The length is summed up twice: in UDP's header, and in the one that is not sent. */
	if (bpf_skb_store_bytes(skb, 0, headers, size, BPF_F_INVALIDATE_HASH) || store_reply(skb, size, after, in) ||
	    bpf_l4_csum_replace(skb, checksum, 0, change, BPF_F_MARK_MANGLED_0) ||
	    bpf_l4_csum_replace(skb, checksum, length[0], length[1], BPF_F_MARK_MANGLED_0 | sizeof(__be16)) ||
	    bpf_l4_csum_replace(skb, checksum, length[0], length[1],
				BPF_F_MARK_MANGLED_0 | BPF_F_PSEUDO_HDR | sizeof(__be16)))
		return TC_ACT_SHOT;
	count(found);
	return bpf_redirect(skb->ifindex, 0);
}

/* Finds the answer, and writes it into the scratch. */
static __always_inline struct found answer_to(struct __sk_buff *skb, __u32 offset, __u32 length, struct scratch *in)
{
	__u64 now = bpf_ktime_get_boot_ns();
	struct found found = {};

	in->question.interface = skb->ifindex;
	if (!read_message(skb, offset, length, in))
		return found;
	found.answer = find(in, now);
	if (!found.answer)
		return found;
	found.verdict = permitted(&in->question);
	if (!found.verdict)
		return found;
	found.length = write_reply(skb, offset, found.answer, now, in);
	return found;
}

static __always_inline int of_v4(struct __sk_buff *skb, struct scratch *in)
{
	struct headers_v4 headers;
	struct found found;
	__u32 before;
	__be32 address;

	if (bpf_skb_load_bytes(skb, 0, &headers.ethernet, SIZE_V4))
		return TC_ACT_UNSPEC;
	/* No options, no fragment. */
	if (headers.ip.version != 4 || headers.ip.ihl != 5 || headers.ip.protocol != IPPROTO_UDP ||
	    headers.ip.frag_off & bpf_htons(0xbfff))
		return TC_ACT_UNSPEC;
	if (headers.udp.dest != bpf_htons(DNS_PORT) || !headers.udp.source)
		return TC_ACT_UNSPEC;
	before = bpf_ntohs(headers.udp.len) - sizeof(struct udphdr);
	if (before > MAX_QUERY || skb->len != SIZE_V4 + before ||
	    bpf_ntohs(headers.ip.tot_len) != sizeof(struct iphdr) + sizeof(struct udphdr) + before ||
	    fold(bpf_csum_diff(0, 0, (__be32 *)&headers.ip, sizeof(headers.ip), 0)) != 0xffff)
		return TC_ACT_UNSPEC;
	in->question.version = 4;
	__builtin_memset(in->question.client, 0, sizeof(in->question.client));
	__builtin_memset(in->question.server, 0, sizeof(in->question.server));
	__builtin_memcpy(in->question.client, &headers.ip.saddr, 4);
	__builtin_memcpy(in->question.server, &headers.ip.daddr, 4);
	found = answer_to(skb, SIZE_V4, before, in);
	if (!found.length)
		return TC_ACT_UNSPEC;
	swap_ends(&headers.ethernet, &headers.udp);
	address = headers.ip.saddr;
	headers.ip.saddr = headers.ip.daddr;
	headers.ip.daddr = address;
	headers.ip.tos = 0;
	headers.ip.id = 0;
	headers.ip.frag_off = bpf_htons(0x4000);
	headers.ip.ttl = 64;
	headers.ip.tot_len = bpf_htons(sizeof(struct iphdr) + sizeof(struct udphdr) + found.length);
	headers.ip.check = 0;
	headers.ip.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&headers.ip, sizeof(headers.ip), 0));
	headers.udp.len = bpf_htons(sizeof(struct udphdr) + found.length);
	return reply_with(skb, in, &headers.ethernet, SIZE_V4, before, &found);
}

static __always_inline int of_v6(struct __sk_buff *skb, struct scratch *in)
{
	struct headers_v6 headers;
	struct found found;
	__u8 address[16];
	__u32 before;

	if (bpf_skb_load_bytes(skb, 0, &headers.ethernet, SIZE_V6))
		return TC_ACT_UNSPEC;
	if (headers.ip.version != 6 || headers.ip.nexthdr != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	if (headers.udp.dest != bpf_htons(DNS_PORT) || !headers.udp.source)
		return TC_ACT_UNSPEC;
	before = bpf_ntohs(headers.udp.len) - sizeof(struct udphdr);
	if (before > MAX_QUERY || skb->len != SIZE_V6 + before ||
	    bpf_ntohs(headers.ip.payload_len) != sizeof(struct udphdr) + before)
		return TC_ACT_UNSPEC;
	in->question.version = 6;
	__builtin_memcpy(in->question.client, &headers.ip.saddr, 16);
	__builtin_memcpy(in->question.server, &headers.ip.daddr, 16);
	found = answer_to(skb, SIZE_V6, before, in);
	if (!found.length)
		return TC_ACT_UNSPEC;
	swap_ends(&headers.ethernet, &headers.udp);
	__builtin_memcpy(address, &headers.ip.saddr, 16);
	__builtin_memcpy(&headers.ip.saddr, &headers.ip.daddr, 16);
	__builtin_memcpy(&headers.ip.daddr, address, 16);
	*(__be32 *)&headers.ip = bpf_htonl(0x60000000);
	headers.ip.hop_limit = 64;
	headers.ip.payload_len = headers.udp.len = bpf_htons(sizeof(struct udphdr) + found.length);
	return reply_with(skb, in, &headers.ethernet, SIZE_V6, before, &found);
}

SEC("classifier")
int egret_answers(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	struct scratch *in;

	/* To this node, in one piece. */
	if (skb->pkt_type != 0 || skb->vlan_present || skb->gso_size)
		return TC_ACT_UNSPEC;
	in = LOOKUP(scratch, &zero);
	if (!in)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return of_v4(skb, in);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return of_v6(skb, in);
	return TC_ACT_UNSPEC;
}
