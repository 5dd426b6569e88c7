// Which driver calls came, how they ended, and the faults that wait for some of them.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {

struct PlannedFault {
  Call call = Call::kInit;
  pid_t pid = 0;     // of the target; 0: any
  uint64_t nth = 0;  // the nth matching call from now on, once; 0: each
  Fault fault = {};
  uint64_t seen = 0;
};

class CallLog {
 public:
  void Plan(const PlannedFault& fault) { faults_.push_back(fault); }
  void ClearFaults() { faults_.clear(); }

  // Counts the call, logs it if it is one of the checkpoint API, and says what is to go wrong. The id is for
  // End; 0 means that the call is not logged.
  uint64_t Begin(Call call, pid_t target, pid_t caller, Fault* fault);
  void End(uint64_t id, gpu::cuda::Result result);

  std::string CountsJson() const;  // {"lock": 3, …}
  std::string CallsJson() const;  // one line per call: [{"call":…,"pid":…,"caller":…,"result":…}, …]

 private:
  struct Entry {
    Call call;
    pid_t target, caller;
    bool ended;
    gpu::cuda::Result result;
  };
  std::vector<PlannedFault> faults_;
  std::array<uint64_t, kCalls> counts_ = {};
  std::vector<Entry> entries_;
};

}  // namespace rekindle::gpu_sim
