#include "ckpt/namespaces_check.h"

#include <unistd.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "criu/image_files.h"

namespace rekindle::ckpt {
namespace {

struct SharedKind {
  const char* name;
  const char* words;
};
constexpr SharedKind kProcessKinds[] = {{"user", "user"}, {"pid", "PID"}, {"time", "time"},
                                        {"ipc", "IPC"},   {"uts", "UTS"}, {"cgroup", "cgroup"}};
// Those that a thread enters alone, as libraries do.
constexpr SharedKind kThreadKinds[] = {{"mnt", "mount"}, {"net", "network"}};

// Of "PID" or "PID/task/TID"; empty: it has gone, or is a zombie.
std::string TaskNamespace(absl::string_view task, const char* kind) {
  return ReadLink(absl::StrCat("/proc/", task, "/ns/", kind)).value_or("");
}

bool Differs(absl::string_view task, const char* kind, const std::string& roots) {
  const std::string its = TaskNamespace(task, kind);
  return !its.empty() && !roots.empty() && its != roots;
}

constexpr char kOneForAll[] =
    ", while CRIU brings back a job whose processes are all in the same namespaces. Start the whole job in "
    "that one, or give the PID of a process below which all are in one";

// CRIU takes these, and those that its processes have below it, along. Into a container's it goes itself.
bool HasOwnNetwork(const std::string& root) {
  return TaskNamespace(root, "pid") == TaskNamespace("self", "pid") &&
         Differs(root, "net", TaskNamespace("self", "net"));
}

absl::Status UserNamespaceOf(pid_t root, pid_t pid) {
  return absl::UnimplementedError(absl::StrCat(
      "capturing process ", root, ": ", pid == root ? "it" : absl::StrCat("its process ", pid),
      " has a user namespace of its own, in which CRIU can't bring it back; start it without one (`unshare "
      "--user` makes one, and so do the sandboxes of bwrap and of browsers, and rootless containers)"));
}

absl::Status InAnother(pid_t root, absl::string_view who, const char* kind) {
  return absl::UnimplementedError(absl::StrCat("capturing process ", root, ": ", who, " is in another ", kind,
                                               " namespace than the job's first process", kOneForAll));
}

}  // namespace

absl::Status CheckNamespaces(const std::vector<pid_t>& pids) {
  const pid_t root = pids.front();
  const std::string first = absl::StrCat(root);
  // A container's own is told of where it is gone into (criu/job_namespaces.h).
  if (TaskNamespace(first, "pid") == TaskNamespace("self", "pid") &&
      Differs(first, "user", TaskNamespace("self", "user"))) {
    return UserNamespaceOf(root, root);
  }
  std::map<std::string, std::string> roots;
  for (const SharedKind& kind : kProcessKinds) roots[kind.name] = TaskNamespace(first, kind.name);
  for (const SharedKind& kind : kThreadKinds) roots[kind.name] = TaskNamespace(first, kind.name);
  const bool may_differ = HasOwnNetwork(first);
  for (const pid_t pid : pids) {
    const std::string process = absl::StrCat(pid);
    if (may_differ) roots["net"] = TaskNamespace(process, "net");  // but its threads are in that one
    if (Differs(process, "user", roots["user"])) return UserNamespaceOf(root, pid);
    for (const SharedKind& kind : kProcessKinds) {
      if (Differs(process, kind.name, roots[kind.name]))
        return InAnother(root, absl::StrCat("its process ", pid), kind.words);
    }
    const absl::StatusOr<std::vector<pid_t>> threads = ThreadsOf(pid);
    if (!threads.ok()) continue;  // it has ended
    for (const pid_t thread : *threads) {
      for (const SharedKind& kind : kThreadKinds) {
        if (!Differs(absl::StrCat(pid, "/task/", thread), kind.name, roots[kind.name])) continue;
        const std::string who = thread == pid ? absl::StrCat("its process ", pid)
                                              : absl::StrCat("thread ", thread, " of its process ", pid);
        return InAnother(root, who, kind.words);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNamespacesInImage(pid_t root, const std::map<std::string, std::string>& criu_files) {
  std::vector<uint32_t> first;
  const bool may_differ = HasOwnNetwork(absl::StrCat(root));
  for (const auto& [name, content] : criu_files) {
    if (absl::StartsWith(name, "userns-")) return UserNamespaceOf(root, root);
    bool differ = absl::StartsWith(name, "mountpoints-");
    if (absl::StartsWith(name, "ids-")) {
      RK_ASSIGN_OR_RETURN(std::vector<uint32_t> ids, criu::ParseNamespaceIds(content));
      if (first.empty()) first = ids;
      if (may_differ) ids[0] = first[0];  // the network's
      for (size_t i = 0; i < ids.size(); ++i) differ |= ids[i] != first[i] && ids[i] != 0 && first[i] != 0;
    }
    if (!differ) continue;
    return absl::AbortedError(
        absl::StrCat("capturing process ", root,
                     ": a process of the job has gone into another namespace while it was being captured; it "
                     "runs on, try again"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::ckpt
