// What is said to the program rekindle-sandbox, and to the init process of each sandbox that it makes: one
// JSON object a packet, "do" names what is asked for; every request but "stay" is answered, in order, with
// "ok" or "error".
//
// To the program (kFactorySocket):
//   make {network: "host" | "none" | "own", directory} + [the init's control socket, its keeper socket]
//        -> {pid} + [pidfd of the init]
// To an init (control socket):
//   criu {argv, environment: what is to be different in it, descriptors: numbers in CRIU, groups: how many} +
//   [descriptors…, cgroup.procs files…]
//        -> + [CRIU's RPC socket, pidfd of CRIU]
//   set {host_name, binds: [[from, to]…], temporary: bytes, shared_memory: bytes, keep: folders, read_only:
//        folders}: the last four as OwnTemporary; what it has of its own already gets another size
//   hide {folder}: it is an empty one from now on
//   processes {pids: in the sandbox} -> + [a pidfd each]
//   watch {pid, until_stay} -> {until_stay}: the job's root. When it has ended everything else is, and the
//        init says so unasked: {event: "end", code, signal, why, damaged, refused}. `until_stay`: it also
//        ends with whoever has the other end of the control socket; a packet "stay", which has no answer,
//        ends that.
//   also {} + [a socket]: requests are taken from it too
//   make: as above; the sandbox lies in this one, which ends only when the last such has
//   next pid {pid}: the next process in it gets this PID
//   end: kills everything.
// To an init (keeper socket): kN + [userfaultfd N, to be held]; gN: that process has ended, let go of N; d:
// all memory is there, let go of them all; xWHY: end everything, for that reason; XWHY: the same, because the
// image is damaged; RWHY: because the disk refused to read it, which it may not do the next time.
// From it: kJobExited: the job's root has ended, and not by a signal. It says nothing of any other end.
#pragma once

namespace rekindle::restore {

inline constexpr int kFactorySocket = 3;
// In an init: its own folder, which CRIU finds as /proc/1/fd/N.
inline constexpr int kInitDirectory = 5;
// In CRIU.
inline constexpr int kSocketInCriu = 3;
inline constexpr int kFirstInheritedInCriu = 16;
inline constexpr char kJobExited = 'e';
inline constexpr char kStatusFile[] = "status.json";

}  // namespace rekindle::restore
