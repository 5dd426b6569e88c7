#include "functions/contender.h"

#include <cmath>

#include "functions/keep_alive_policy.h"
#include "functions/lru_set.h"

namespace rekindle::functions {
namespace {

// All but ours: idle instances for a fixed time, and images in memory and on disk, by last use.
class LruContender : public Contender {
 public:
  enum class Images { kNone, kOfFunction, kOfDependency };

  LruContender(const SimulationModel& model, const Budgets& budgets, double keep_alive_seconds, Images images)
      : model_(model),
        budgets_(budgets),
        keep_alive_(std::llround(keep_alive_seconds * 1e6)),
        images_(images) {}

  void AddDependency(double mb, Micros now) override {
    if (images_ == Images::kOfDependency) AddImage(mb, now);
  }

  void AddFunction(const ModelFunction& function, Micros now) override {
    const double mb = function.memory_mb;
    Function added;
    added.bytes = static_cast<uint64_t>(std::llround(mb * (1 << 20)));
    added.cold_ms = model_.cold_ms.At(mb) + model_.code_load_ms;
    double image_mb = 0;
    if (images_ == Images::kOfFunction) {
      added.image = AddImage(mb, now);
      image_mb = mb;
      added.ram_ms = model_.criu_restore_ms.At(mb);
    } else if (images_ == Images::kOfDependency) {
      added.image = function.dependency;
      image_mb = function.dependency_mb;
      added.ram_ms = model_.criu_lazy_ms.At(image_mb) + model_.code_load_ms;
    }
    added.disk_ms = added.ram_ms + model_.disk_latency_ms + image_mb / model_.disk_mb_per_second * 1e3;
    functions_.push_back(added);
  }

  StartDecision Arrived(FunctionId id, Micros now) override {
    Expire(now);
    Function& function = functions_[id];
    busy_bytes_ += function.bytes;
    if (function.newest != kNone) {
      TakeIdle(function.newest);
      return {StartLevel::kInstance, model_.warm_ms, false};
    }
    StartDecision decision{StartLevel::kCold, function.cold_ms, false};
    if (images_ != Images::kNone) {
      const bool in_ram = cached_.Contains(function.image), on_disk = disk_.Contains(function.image);
      if (in_ram || on_disk) {
        const bool own = images_ == Images::kOfFunction;
        decision.level = in_ram ? (own ? StartLevel::kImageRam : StartLevel::kDependencyRam)
                                : (own ? StartLevel::kImageDisk : StartLevel::kDependencyDisk);
        decision.expected_ms = in_ram ? function.ram_ms : function.disk_ms;
      }
      UseDisk(function.image, now);
      cached_.Use(function.image, now);
    }
    decision.over_budget = !Fit();
    return decision;
  }

  void BecameIdle(FunctionId id, Micros now) override {
    Function& function = functions_[id];
    busy_bytes_ -= function.bytes;
    if (keep_alive_ == 0) return;
    uint32_t slot = static_cast<uint32_t>(idle_.size());
    if (free_.empty()) {
      idle_.emplace_back();
      instances_.Add(0);
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    idle_[slot] = {id, function.newest, kNone};
    if (function.newest != kNone) idle_[function.newest].newer = slot;
    function.newest = slot;
    instances_.Use(slot, now);
    idle_bytes_ += function.bytes;
    Expire(now);
    Fit();
  }

  void Advance(Micros now) override { Expire(now); }
  Micros NextChange() const override { return INT64_MAX; }

  Usage usage() const override { return {busy_bytes_ + idle_bytes_ + cached_.bytes(), disk_.bytes()}; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Function {
    uint64_t bytes = 0;
    double cold_ms = 0, ram_ms = 0, disk_ms = 0;
    uint32_t image = 0;
    uint32_t newest = kNone;  // of its idle instances
  };
  struct IdleInstance {
    FunctionId function = 0;
    uint32_t older = kNone, newer = kNone;  // of the same function
  };

  uint32_t AddImage(double mb, Micros now) {
    auto bytes = static_cast<uint64_t>(std::llround(mb * (1 << 20)));
    cached_.Add(bytes);
    disk_.Add(bytes);
    UseDisk(image_count_, now);
    return image_count_++;
  }

  void UseDisk(uint32_t image, Micros now) {
    if (disk_.BytesOf(image) > budgets_.disk_bytes) return;
    disk_.Use(image, now);
    while (disk_.bytes() > budgets_.disk_bytes) {
      if (cached_.Contains(disk_.Oldest())) cached_.Remove(disk_.Oldest());
      disk_.Remove(disk_.Oldest());
    }
  }

  void TakeIdle(uint32_t slot) {
    const IdleInstance& instance = idle_[slot];
    Function& function = functions_[instance.function];
    if (instance.older != kNone) idle_[instance.older].newer = instance.newer;
    (instance.newer == kNone ? function.newest : idle_[instance.newer].older) = instance.older;
    instances_.Remove(slot);
    idle_bytes_ -= function.bytes;
    free_.push_back(slot);
  }

  void Expire(Micros now) {
    while (!instances_.empty() && instances_.OldestUse() + keep_alive_ <= now) TakeIdle(instances_.Oldest());
  }

  // Until everything fits, cached images go, then instances; false when nothing is left to go.
  bool Fit() {
    while (busy_bytes_ + idle_bytes_ + cached_.bytes() > budgets_.memory_bytes) {
      if (!cached_.empty()) {
        cached_.Remove(cached_.Oldest());
      } else if (!instances_.empty()) {
        TakeIdle(instances_.Oldest());
      } else {
        return false;
      }
    }
    return true;
  }

  const SimulationModel model_;
  const Budgets budgets_;
  const Micros keep_alive_;
  const Images images_;
  std::vector<Function> functions_;
  std::vector<IdleInstance> idle_;
  std::vector<uint32_t> free_;
  LruSet instances_, cached_, disk_;
  uint32_t image_count_ = 0;
  uint64_t busy_bytes_ = 0, idle_bytes_ = 0;
};

class RekindleContender : public Contender {
 public:
  RekindleContender(const SimulationModel& model, const Budgets& budgets)
      : model_(model), policy_(Options(model, budgets)) {}

  void AddDependency(double mb, Micros now) override {
    policy_.AddDependency(ProfileOfDependency(model_, mb), now, &actions_);
    actions_.clear();
  }
  void AddFunction(const ModelFunction& function, Micros now) override {
    policy_.AddFunction(ProfileOf(model_, function), now, &actions_);
    actions_.clear();
  }
  StartDecision Arrived(FunctionId function, Micros now) override {
    StartDecision decision = policy_.Arrived(function, now, &actions_);
    actions_.clear();
    return decision;
  }
  void BecameIdle(FunctionId function, Micros now) override {
    policy_.BecameIdle(function, now, &actions_);
    actions_.clear();
  }
  void Advance(Micros now) override {
    if (policy_.NextTick() <= now) policy_.Tick(now, &actions_);
    actions_.clear();
  }
  Micros NextChange() const override { return policy_.NextTick(); }
  Usage usage() const override { return {policy_.usage().memory_bytes, policy_.usage().disk_bytes}; }

 private:
  static KeepAliveOptions Options(const SimulationModel& model, const Budgets& budgets) {
    KeepAliveOptions options;
    options.memory_bytes = budgets.memory_bytes;
    options.disk_bytes = budgets.disk_bytes;
    options.slow_start_ms = budgets.slow_start_ms;
    options.fade_seconds = model.fade_seconds;
    return options;
  }

  const SimulationModel model_;
  KeepAlivePolicy policy_;
  std::vector<Action> actions_;  // done at once: the policy has counted them
};

}  // namespace

const std::vector<std::string>& ContenderNames() {
  static const auto* const names =
      new std::vector<std::string>{"none", "fixed", "snapshot", "hotswap", "rekindle"};
  return *names;
}

std::unique_ptr<Contender> MakeContender(absl::string_view name, const SimulationModel& model,
                                         const Budgets& budgets) {
  using Images = LruContender::Images;
  const double keep = model.keep_alive_seconds;
  if (name == "none") return std::make_unique<LruContender>(model, budgets, 0, Images::kNone);
  if (name == "fixed") return std::make_unique<LruContender>(model, budgets, keep, Images::kNone);
  if (name == "snapshot") return std::make_unique<LruContender>(model, budgets, keep, Images::kOfFunction);
  if (name == "hotswap") return std::make_unique<LruContender>(model, budgets, keep, Images::kOfDependency);
  if (name == "rekindle") return std::make_unique<RekindleContender>(model, budgets);
  return nullptr;
}

}  // namespace rekindle::functions
