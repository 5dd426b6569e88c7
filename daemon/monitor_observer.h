// Progress of a capture or a restore, handed to the monitor of the call that does it.
#pragma once

#include "daemon/call_monitor.h"

namespace rekindle::daemon {

// `Observer` has OnProgress(const Progress&). The monitor outlives it.
template <typename Observer, typename Progress>
class MonitorObserver final : public Observer {
 public:
  explicit MonitorObserver(CallMonitor& monitor) : monitor_(monitor) {}
  void OnProgress(const Progress& p) override {
    monitor_.Report(p.phase, p.bytes_done, p.bytes_total, p.elapsed_seconds, p.devices);
  }

 private:
  CallMonitor& monitor_;
};

}  // namespace rekindle::daemon
