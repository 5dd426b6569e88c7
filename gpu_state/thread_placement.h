// Where a thread may run and has its memory made: for threads of ours that make memory in its place. The
// kernel puts a page where the one who touches it first is, and is told to have them, whosever memory it is.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace rekindle::gpu {

// Which memory nodes new memory comes from; as set_mempolicy(2) takes it.
struct MemoryPolicy {
  int mode = 0;                      // MPOL_*; 0, MPOL_DEFAULT: the node of the processor that touches it
  std::vector<unsigned long> nodes;  // a bit mask
  friend bool operator==(const MemoryPolicy&, const MemoryPolicy&) = default;
};

// What a line of /proc/PID/numa_maps says of the policy, such as "7f12000 bind:0-1,3 anon=1". The default
// where it says nothing that we know.
MemoryPolicy PolicyOfLine(absl::string_view line);

class ThreadPlacement {
 public:
  // What can't be told is left as it is for whoever adopts it.
  static ThreadPlacement Of(pid_t process, pid_t thread);

  // How many processors it may use; 0: not known.
  size_t processors() const;
  // How many memory nodes its control group lets it use; 1: not known.
  size_t memory_nodes() const { return memory_nodes_; }
  // Those of the same are in each other's way.
  friend bool operator<(const ThreadPlacement& a, const ThreadPlacement& b) {
    return a.processors_ < b.processors_;
  }

  // The calling thread has this placement, as far as it may, until the object goes.
  class Adopted {
   public:
    explicit Adopted(const ThreadPlacement& placement);
    ~Adopted();
    Adopted(const Adopted&) = delete;
    Adopted& operator=(const Adopted&) = delete;

   private:
    std::vector<unsigned long> own_processors_;
    MemoryPolicy own_policy_;
    bool policy_changed_ = false;
  };

 private:
  std::vector<unsigned long> processors_;  // a bit mask; empty: not known
  size_t memory_nodes_ = 1;
  std::optional<MemoryPolicy> policy_;  // not known where the kernel knows of no nodes
};

}  // namespace rekindle::gpu
