// What is said to the program rekindle-pager: one JSON object a packet over a SOCK_SEQPACKET socket in the
// runtime directory, answered in order with "ok" or "error". One connection a restore.
//
//   attach {clone, image, fill: "never" | "idle" | "eager", record_ms, until_answer: bool, until_ready: bool,
//          timeline: bool} +
//          [a listening lazy-pages socket, the sandbox's keeper socket; where its memory may be limited, the
//          cgroup's folder]
//          -> {pages}
//   expect {image}: copies of it will come soon; opens it ahead of them
//   processes {pids: in the image} + [a pidfd each]: of the clone that is prefilled next; before that, as
//   often
//          as it takes, where one packet has no room for all
//   prefill {clone, pids} + [a pidfd each]: the rest of them. All its tasks stand still and their areas are
//          registered; writes what must be there, and puts in the recorded working set
//          -> {pages, seconds, settled_bytes: that each copy of the image gets, 0: not for good yet}
//   ready {clone}: the job has answered; what it touched up to now is its working set
//   fill {clone}: all that is missing, now -> {complete: nothing of it is served any more}
//   timeline: what was done until now for the clone that was attached over this connection with timeline
//          -> see PagerRecord::Encode
//   forget {image}: drops its working set, whoever has it -> {dropped: there was one}
//   tidy: closes images that the store does not have any more, and discards frames that gc has freed; copies
//          that run keep theirs
//   resize {cache_bytes} -> {cache_bytes: what the cache has now}
//   stats {clones: with numbers of each} -> see Pager::Stats
#pragma once

namespace rekindle::restore {

inline constexpr int kPagerSocket = 3;  // the listening socket, in the pager
// In the runtime directory: who makes a pager's name, or takes it away, has it locked.
inline constexpr char kPagerLock[] = "pager.lock";
inline constexpr char kEndingPagerSuffix[] =
    ".ending";  // of the name of one that makes sure that nobody wants it

}  // namespace rekindle::restore
