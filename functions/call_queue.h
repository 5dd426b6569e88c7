// Calls that wait: those for which somebody waits go before events, each kind in the order of its arrival.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace rekindle::functions {

// `Request` has event, which does not change, and gone(). Thread-compatible.
template <typename Request>
class CallQueue {
 public:
  using Pointer = std::shared_ptr<Request>;

  bool empty() const { return callers_.empty() && events_.empty(); }
  size_t size() const { return callers_.size() + events_.size(); }
  size_t callers() const { return callers_.size(); }
  size_t events() const { return events_.size(); }
  // Of those, which are wanted.
  size_t wanted() const {
    return events_.size() +
           static_cast<size_t>(std::count_if(callers_.begin(), callers_.end(),
                                             [](const Pointer& one) { return !one->gone(); }));
  }

  const Pointer& front() const { return callers_.empty() ? events_.front() : callers_.front(); }
  Pointer Pop() { return PopFrom(callers_.empty() ? events_ : callers_); }
  void Push(Pointer request) {
    auto& kind = request->event ? events_ : callers_;
    kind.push_back(std::move(request));
  }
  // The event that came last; there is one.
  Pointer PopLastEvent() {
    Pointer last = std::move(events_.back());
    events_.pop_back();
    return last;
  }
  // Whose turn would come last; there is one.
  Pointer PopLast() {
    if (!events_.empty()) return PopLastEvent();
    Pointer last = std::move(callers_.back());
    callers_.pop_back();
    return last;
  }
  // One that has waited already.
  void PushFirst(Pointer request) {
    auto& kind = request->event ? events_ : callers_;
    kind.push_front(std::move(request));
  }

  std::vector<Pointer> TakeAll() {
    std::vector<Pointer> all(callers_.begin(), callers_.end());
    all.insert(all.end(), events_.begin(), events_.end());
    callers_.clear();
    events_.clear();
    return all;
  }
  // Callers that have gone; not events.
  std::vector<Pointer> TakeGoneCallers() {
    auto first = std::stable_partition(callers_.begin(), callers_.end(),
                                       [](const Pointer& one) { return !one->gone(); });
    std::vector<Pointer> gone(first, callers_.end());
    callers_.erase(first, callers_.end());
    return gone;
  }

 private:
  static Pointer PopFrom(std::deque<Pointer>& kind) {
    Pointer first = std::move(kind.front());
    kind.pop_front();
    return first;
  }

  std::deque<Pointer> callers_, events_;
};

}  // namespace rekindle::functions
