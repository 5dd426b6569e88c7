// Lets ThreadSanitizer see absl::Mutex and absl::call_once. The distribution's Abseil is built without the
// sanitizer, so all that they guard would be reported as a race. In the tsan preset the linker sends every
// call of the functions below here (--wrap, see cmake/Sanitizers.cmake); REKINDLE_ABSL is how mangled names
// in Abseil's namespace begin.
#include <sanitizer/tsan_interface.h>

#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle {

void RealLock(absl::Mutex* mutex) asm("__real_" REKINDLE_ABSL "5Mutex4LockEv");
void RealLockWhen(absl::Mutex* mutex,
                  const absl::Condition& condition) asm("__real_" REKINDLE_ABSL
                                                        "5Mutex8LockWhenERKNS0_9ConditionE");
bool RealLockWhenWithTimeout(
    absl::Mutex* mutex, const absl::Condition& condition,
    absl::Duration timeout) asm("__real_" REKINDLE_ABSL
                                "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
bool RealLockWhenWithDeadline(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) asm(
    "__real_" REKINDLE_ABSL "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
bool RealTryLock(absl::Mutex* mutex) asm("__real_" REKINDLE_ABSL "5Mutex7TryLockEv");
void RealUnlock(absl::Mutex* mutex) asm("__real_" REKINDLE_ABSL "5Mutex6UnlockEv");
void RealDestroy(absl::Mutex* mutex) asm("__real_" REKINDLE_ABSL "5MutexD1Ev");
void RealAwait(absl::Mutex* mutex, const absl::Condition& condition) asm("__real_" REKINDLE_ABSL
                                                                         "5Mutex5AwaitERKNS0_9ConditionE");
bool RealAwaitWithTimeout(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout) asm(
    "__real_" REKINDLE_ABSL "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
bool RealAwaitWithDeadline(absl::Mutex* mutex, const absl::Condition& condition,
                           absl::Time deadline) asm("__real_" REKINDLE_ABSL
                                                    "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
uint32_t RealSpinLockWait(void* word, int count, const void* transitions, int mode) asm(
    "__real_" REKINDLE_ABSL
    "13base_internal12SpinLockWaitEPSt6atomicIjEiPKNS1_22SpinLockWaitTransitionENS1_14SchedulingModeE");

namespace {

// Between the two calls of a pair memory accesses are not looked at: a thread that unlocks evaluates the
// conditions that others wait for, with the lock held on their behalf.
template <typename Lock>
void Locked(absl::Mutex* mutex, const Lock& lock) {
  __tsan_mutex_pre_lock(mutex, 0);
  lock();
  __tsan_mutex_post_lock(mutex, 0, 1);
}

template <typename Wait>
void WhileReleased(absl::Mutex* mutex, const Wait& wait) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  Locked(mutex, wait);
}

}  // namespace

void WrapLock(absl::Mutex* mutex) asm("__wrap_" REKINDLE_ABSL "5Mutex4LockEv");
void WrapLock(absl::Mutex* mutex) {
  Locked(mutex, [&] { RealLock(mutex); });
}

// Abseil's notifications, too, come by these.
void WrapLockWhen(absl::Mutex* mutex,
                  const absl::Condition& condition) asm("__wrap_" REKINDLE_ABSL
                                                        "5Mutex8LockWhenERKNS0_9ConditionE");
void WrapLockWhen(absl::Mutex* mutex, const absl::Condition& condition) {
  Locked(mutex, [&] { RealLockWhen(mutex, condition); });
}

bool WrapLockWhenWithTimeout(
    absl::Mutex* mutex, const absl::Condition& condition,
    absl::Duration timeout) asm("__wrap_" REKINDLE_ABSL
                                "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
bool WrapLockWhenWithTimeout(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout) {
  bool met = false;
  Locked(mutex, [&] { met = RealLockWhenWithTimeout(mutex, condition, timeout); });
  return met;
}

bool WrapLockWhenWithDeadline(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) asm(
    "__wrap_" REKINDLE_ABSL "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
bool WrapLockWhenWithDeadline(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) {
  bool met = false;
  Locked(mutex, [&] { met = RealLockWhenWithDeadline(mutex, condition, deadline); });
  return met;
}

bool WrapTryLock(absl::Mutex* mutex) asm("__wrap_" REKINDLE_ABSL "5Mutex7TryLockEv");
bool WrapTryLock(absl::Mutex* mutex) {
  __tsan_mutex_pre_lock(mutex, __tsan_mutex_try_lock);
  const bool locked = RealTryLock(mutex);
  __tsan_mutex_post_lock(mutex, __tsan_mutex_try_lock | (locked ? 0 : __tsan_mutex_try_lock_failed), 1);
  return locked;
}

void WrapUnlock(absl::Mutex* mutex) asm("__wrap_" REKINDLE_ABSL "5Mutex6UnlockEv");
void WrapUnlock(absl::Mutex* mutex) {
  __tsan_mutex_pre_unlock(mutex, 0);
  RealUnlock(mutex);
  __tsan_mutex_post_unlock(mutex, 0);
}

void WrapDestroy(absl::Mutex* mutex) asm("__wrap_" REKINDLE_ABSL "5MutexD1Ev");
void WrapDestroy(absl::Mutex* mutex) {
  __tsan_mutex_destroy(mutex, 0);
  RealDestroy(mutex);
}

void WrapAwait(absl::Mutex* mutex, const absl::Condition& condition) asm("__wrap_" REKINDLE_ABSL
                                                                         "5Mutex5AwaitERKNS0_9ConditionE");
void WrapAwait(absl::Mutex* mutex, const absl::Condition& condition) {
  WhileReleased(mutex, [&] { RealAwait(mutex, condition); });
}

bool WrapAwaitWithTimeout(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout) asm(
    "__wrap_" REKINDLE_ABSL "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
bool WrapAwaitWithTimeout(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout) {
  bool met = false;
  WhileReleased(mutex, [&] { met = RealAwaitWithTimeout(mutex, condition, timeout); });
  return met;
}

bool WrapAwaitWithDeadline(absl::Mutex* mutex, const absl::Condition& condition,
                           absl::Time deadline) asm("__wrap_" REKINDLE_ABSL
                                                    "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
bool WrapAwaitWithDeadline(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) {
  bool met = false;
  WhileReleased(mutex, [&] { met = RealAwaitWithDeadline(mutex, condition, deadline); });
  return met;
}

// In this one a thread waits for the other that runs the function of a call_once.
uint32_t WrapSpinLockWait(void* word, int count, const void* transitions, int mode) asm(
    "__wrap_" REKINDLE_ABSL
    "13base_internal12SpinLockWaitEPSt6atomicIjEiPKNS1_22SpinLockWaitTransitionENS1_14SchedulingModeE");
uint32_t WrapSpinLockWait(void* word, int count, const void* transitions, int mode) {
  uint32_t found = RealSpinLockWait(word, count, transitions, mode);
  __tsan_acquire(word);
  return found;
}

}  // namespace rekindle
