#include "tests/gpu_sim/server/call_log.h"

namespace rekindle::gpu_sim {

uint64_t CallLog::Begin(Call call, pid_t target, pid_t caller, Fault* fault) {
  ++counts_[static_cast<unsigned>(call)];
  for (size_t i = 0; i < faults_.size(); ++i) {
    PlannedFault& planned = faults_[i];
    if (planned.call != call || (planned.pid != 0 && planned.pid != target)) continue;
    ++planned.seen;
    if (planned.nth != 0 && planned.seen != planned.nth) continue;
    *fault = planned.fault;
    if (planned.nth != 0) faults_.erase(faults_.begin() + static_cast<ptrdiff_t>(i));
    break;
  }
  if (call > Call::kRestoreThread) return 0;
  entries_.push_back({call, target, caller, false, 0});
  return entries_.size();
}

void CallLog::End(uint64_t id, gpu::cuda::Result result) {
  if (id == 0 || id > entries_.size()) return;
  entries_[id - 1].ended = true;
  entries_[id - 1].result = result;
}

std::string CallLog::CountsJson() const {
  std::string json = "{";
  for (unsigned i = 0; i < kCalls; ++i) {
    if (i > 0) json += ", ";
    json += std::string("\"") + CallName(static_cast<Call>(i)) + "\": " + std::to_string(counts_[i]);
  }
  return json + "}";
}

std::string CallLog::CallsJson() const {
  std::string json = "[";
  for (const Entry& entry : entries_) {
    json += json.size() > 1 ? ",\n " : "";
    json += std::string("{\"call\": \"") + CallName(entry.call) +
            "\", \"pid\": " + std::to_string(entry.target) + ", \"caller\": " + std::to_string(entry.caller) +
            ", \"result\": " + (entry.ended ? std::to_string(entry.result) : "null") + "}";
  }
  return json + "]";
}

}  // namespace rekindle::gpu_sim
