// For callbacks that use an object which they do not own: they find it gone as soon as its end has begun, and
// its end waits for those that are using it. With a std::weak_ptr a callback may turn out to be the last
// owner, and destroy the object on a thread that its destructor waits for.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle {

// A member of the object. Thread-safe.
template <typename T>
class Lifeline {
  struct State {
    explicit State(T* used) : object(used) {}
    bool Unused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return uses == 0; }

    absl::Mutex mutex;
    T* object ABSL_GUARDED_BY(mutex);  // null once it has been cut
    int uses ABSL_GUARDED_BY(mutex) = 0;
  };

 public:
  // As long as one that is not empty exists, the object does.
  class Use {
   public:
    Use(Use&& other) noexcept
        : state_(std::move(other.state_)), object_(std::exchange(other.object_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (object_ == nullptr) return;
      absl::MutexLock lock(&state_->mutex);
      --state_->uses;
    }

    explicit operator bool() const { return object_ != nullptr; }
    T* operator->() const { return object_; }
    T& operator*() const { return *object_; }

   private:
    friend class Lifeline;
    explicit Use(std::shared_ptr<State> state) : state_(std::move(state)) {
      absl::MutexLock lock(&state_->mutex);
      object_ = state_->object;
      if (object_ != nullptr) ++state_->uses;
    }

    std::shared_ptr<State> state_;
    T* object_ = nullptr;
  };

  // What a callback keeps; it may outlive the object.
  class End {
   public:
    // Empty: the object is gone, or its end has begun.
    Use Hold() const { return Use(state_); }

   private:
    friend class Lifeline;
    explicit End(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };

  explicit Lifeline(T* object) : state_(std::make_shared<State>(object)) {}
  ~Lifeline() { Cut(); }
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  End end() const { return End(state_); }

  // From here on nobody gets the object. Returns when nobody uses it any more: not to be called by one who
  // does. The first thing in the object's destructor, while all its parts are there.
  void Cut() {
    absl::MutexLock lock(&state_->mutex);
    state_->object = nullptr;
    state_->mutex.Await(absl::Condition(state_.get(), &State::Unused));
  }

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace rekindle
