// How functions are deployed: their code is copied, their images are found.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/code_room.h"
#include "daemon/early_variables.h"
#include "daemon/function_imports.h"
#include "daemon/function_layers.h"
#include "daemon/function_runtime.h"
#include "daemon/functions.h"

namespace rekindle::daemon {
namespace {

std::string WarnOfGenerators(const std::vector<std::string>& generators) {
  return absl::StrCat(
      "instances that start from its image would draw the same random numbers from: ", SomeOf(generators),
      ". Have them seeded in each with register_after_restore (docs/hook.md), or deploy it with --no-image");
}

std::string WarnOfDrawnBy(const std::vector<std::string>& drawn, const functions::Runtime& runtime) {
  return absl::StrCat(
      "instances that start from its image would have in common what was drawn at random when it was loaded, "
      "such as IDs and keys, by: ",
      SomeOf(drawn), ". Have it drawn in the handler, or anew in each with ",
      runtime.kind == functions::RuntimeKind::kNode ? "registerAfterRestore" : "register_after_restore",
      " (docs/hook.md), or deploy it with --no-image");
}

}  // namespace

absl::StatusOr<functions::FunctionImages> Functions::FindImages(
    const functions::FunctionRecord& record, bool replaces_one,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel,
    std::vector<std::string>* warnings) {
  functions::FunctionImages images;
  std::vector<std::string> told;  // that was drawn
  images.dependencies = record.spec.dependencies;
  images.of_layers = record.images.of_layers;
  images.load_failure = record.images.load_failure;  // unless it is tried now
  for (std::string& module :
       ModulesOfLayers(record.spec.runtime, record.owner, LayersOf(record), images.dependencies))
    images.of_layers.push_back(std::move(module));
  if (record.spec.discover_dependencies) {
    progress("discover");
    images.load_failure.clear();
    bool refused = false;
    auto found = FindImports(node_, record, instances_->TemporaryOf(record), cancel, &refused);
    if (absl::IsCancelled(found.status())) return found.status();
    if (found.ok()) {
      const double most = static_cast<double>(record.spec.start_timeout_ms) / 1000;
      if (found->seconds > most) {
        const bool imports = !found->of_machine.empty() || !found->of_layers.empty();
        warnings->push_back(
            absl::StrCat("loading it took ", FormatSeconds(found->seconds), ", and an instance may take ",
                         FormatSeconds(most), " for that: ",
                         imports ? "unless most of it is what it imports, which instances find loaded, " : "",
                         "invoking it will fail; give it more --start-timeout"));
      }
      if (record.spec.starts_from_images() && !found->unrenewed.empty())
        warnings->push_back(WarnOfGenerators(found->unrenewed));
      if (record.spec.starts_from_images() && !found->drawn.empty()) {
        warnings->push_back(WarnOfDrawnBy(found->drawn, record.spec.runtime));
        told = found->drawn;
      }
      images.of_layers.insert(images.of_layers.end(), found->of_layers.begin(), found->of_layers.end());
      for (const auto& names : {found->of_machine, found->of_layers})
        images.dependencies.insert(images.dependencies.end(), names.begin(), names.end());
    } else if (replaces_one && absl::IsFailedPrecondition(found.status())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "its handler could not be loaded, so the revision that is deployed stays; mend it, or deploy "
          "it all the same with --force: ",
          found.status().message(),
          Serving(record.name()) > 0 && IsInAnothersWay(found.status().message())
              ? absl::StrCat(" (an instance of that one runs, and may have the port or the lock: then "
                             "--force helps",
                             record.spec.network == v1::CloneOptions::HOST
                                 ? ", or --net own, where each has ports of its own)"
                                 : ")")
              : ""));
    } else if (!absl::IsFailedPrecondition(found.status())) {
      warnings->push_back(absl::StrCat("whether its handler can be loaded could not be found out: ",
                                       found.status().message()));
    } else {
      warnings->push_back(absl::StrCat("its handler could not be loaded, and invoking it will fail: ",
                                       found.status().message()));
      if (refused) images.load_failure = LoadFailure(found.status());
    }
  }
  for (std::vector<std::string>* names : {&images.dependencies, &images.of_layers}) {
    std::sort(names->begin(), names->end());
    names->erase(std::unique(names->begin(), names->end()), names->end());
  }
  if (record.spec.starts_from_images()) {
    const functions::FunctionImages wanted = images;
    auto covered = CoverFor(record, &images, progress, cancel, warnings);
    if (absl::IsCancelled(covered.status())) return covered.status();
    if (covered.ok()) {
      images.dependency_image = covered->image.info.reference;
      std::vector<std::string> drawn = covered->image.drawn;
      std::erase_if(drawn, [&](const std::string& what) {
        return std::find(told.begin(), told.end(), what) != told.end();
      });
      if (!drawn.empty()) warnings->push_back(WarnOfDrawnIn(images.dependency_image, drawn));
      for (std::string& warning : WarnOfEarlyVariables(record.spec, images.dependencies))
        warnings->push_back(std::move(warning));
    } else if (CanNotLoadOneOf(record.spec.dependencies, covered.status())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--deps: ", covered.status().message(),
          ". Check the spelling, install it, or leave it out: what the code folder has is loaded with the "
          "function"));
    } else {
      images = wanted;  // for the next attempt
      warnings->push_back(
          absl::StrCat("it has no dependency image and starts from nothing until it can be built, which is "
                       "tried again in the background: ",
                       covered.status().message()));
      NoteWhyNot(record, covered.status().message());
    }
  }
  return images;
}

absl::StatusOr<Functions::DeployResult> Functions::Deploy(
    const Caller& caller, const functions::FunctionSpec& spec, bool replace, bool force,
    const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel) {
  if (caller.kind == Caller::Kind::kRemote && !caller.admin_certificate) {
    return absl::PermissionDeniedError(
        "functions are deployed on the node itself, or with an administrator's certificate: their code is a "
        "folder of "
        "the node");
  }
  functions::DeployOptions options;
  options.replace = replace;
  return DeployAs({caller.uid, caller.gid, caller.groups}, spec, force, std::move(options), progress, cancel);
}

absl::StatusOr<Functions::DeployResult> Functions::Set(
    const functions::FunctionRecord& present, const functions::FunctionSpec& spec, functions::NewParts parts,
    bool force, const std::function<void(const char* phase, uint64_t bytes)>& progress,
    const Cancellation* cancel) {
  functions::DeployOptions options;
  options.replace = true;
  options.code_of = present;
  options.new_parts = parts;
  return DeployAs(present.owner, spec, force, std::move(options), progress, cancel);
}

absl::Status Functions::CheckMayHaveMore(const Owner& owner, const std::string& name) const {
  if (owner.uid == 0) return absl::OkStatus();
  const std::vector<functions::FunctionRecord> records = catalog_->List();
  const auto is_theirs = [&](const functions::FunctionRecord& record) {
    return record.owner.uid == owner.uid;
  };
  // Who has more than that, of an earlier version, may change them all the same.
  if (std::any_of(records.begin(), records.end(),
                  [&](const auto& record) { return is_theirs(record) && record.name() == name; }))
    return absl::OkStatus();
  const auto has = std::count_if(records.begin(), records.end(), is_theirs);
  if (static_cast<size_t>(has) < kMostFunctionsOfOne) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("user ", owner.uid, " has ", has,
                   " functions, as many as one user may: remove some (rekindle fn ls, rekindle fn rm NAME)"));
}

uint64_t Functions::PresentBytes(uid_t owner) const {
  uint64_t present = 0;
  for (const functions::FunctionRecord& record : catalog_->List()) {
    if (record.owner.uid == owner && record.folder != nullptr) present += record.own_bytes();
  }
  return present;
}

absl::StatusOr<Functions::DeployResult> Functions::DeployAs(
    const Owner& owner, const functions::FunctionSpec& spec, bool force, functions::DeployOptions options,
    const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel) {
  const functions::FunctionRecord* const code_of = options.code_of ? &*options.code_of : nullptr;
  const bool same_code = code_of != nullptr && !options.new_parts.code;
  RK_RETURN_IF_ERROR(CheckMayHaveMore(owner, spec.name));
  RK_RETURN_IF_ERROR(RuntimeCommand(spec.runtime, same_code ? code_of->folder->code() : spec.code).status());
  functions::ScheduledFunction wanted;
  wanted.name = spec.name;
  wanted.owner = owner.uid;
  wanted.memory_bytes = spec.memory_bytes;
  wanted.provisioned = spec.provisioned;
  const OwnersAtWork::Work work(with_layers_, owner.uid);
  // Until it is scheduled: another deployment must not count on the same room.
  RK_ASSIGN_OR_RETURN(const functions::Scheduler::Reservation room, scheduler_->ReserveProvisioned(wanted));
  DeployResult result;
  if (const absl::Status& usable = FunctionInstances::LimitsUsable(); !usable.ok())
    result.warnings.push_back(NoLimits("it has", usable));
  progress("copy", 0);
  options.progress = [&progress](uint64_t bytes) { progress("copy", bytes); };
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  const auto code_room = [&] {
    return CodeRoom::Of(*store, node_.options().store, catalog_->List(), catalog_->ledger(),
                        catalog_->layers().Sizes(), spec.name, owner.uid);
  };
  RK_ASSIGN_OR_RETURN(const CodeRoom room_now, code_room());
  // All is a copy of what it takes the place of: code, and layers that are there already.
  const bool is_copy = same_code && !options.new_parts.layers && !options.new_parts.venv &&
                       (spec.LayerFolders().empty() || !code_of->folder->layers().empty());
  const uint64_t present_bytes = PresentBytes(owner.uid);
  // So that such a one can be had without room. Not while another is being copied, or instances run from what
  // was replaced: it would come on top of that.
  const auto takes_no_more = [&](uint64_t bytes) {
    return is_copy && bytes <= code_of->own_bytes() &&
           catalog_->ledger()->Of(owner.uid) <= present_bytes + bytes;
  };
  options.may_take = [&](uint64_t bytes, bool all) {
    return takes_no_more(bytes) ? absl::OkStatus() : room_now.Check(bytes, all);
  };
  options.cancelled = cancel != nullptr ? &cancel->cancelled() : nullptr;
  RK_ASSIGN_OR_RETURN(options.python, PythonVersion(spec.runtime));
  options.prepare_layer = CompileLayers(spec.runtime, owner, progress, cancel);
  bool was_loaded = false;  // or that was tried
  const auto find_images = [&](functions::FunctionRecord record, bool replaces_one) {
    // The same code imports the same, unless it looks at variables.
    if (same_code && code_of->spec.environment == spec.environment && record.layers == code_of->layers &&
        record.spec.LayerFolders() == code_of->spec.LayerFolders() &&
        !code_of->images.dependency_image.empty()) {
      const functions::FunctionImages known = WithNotLoaded(code_of->images);
      record.spec.discover_dependencies = false;
      record.spec.dependencies = known.dependencies;
      record.images.of_layers = known.of_layers;
      record.images.load_failure = known.load_failure;
    }
    was_loaded = record.spec.discover_dependencies;
    return FindImages(
        record, replaces_one, [&progress](const char* phase) { progress(phase, 0); }, cancel,
        &result.warnings);
  };
  options.prepare = [&](const functions::FunctionRecord& staged, functions::FunctionImages* images) {
    RK_ASSIGN_OR_RETURN(*images, find_images(staged, !force && catalog_->Find(spec.name).ok()));
    if (takes_no_more(staged.own_bytes())) return absl::OkStatus();
    // Others may have been deployed meanwhile.
    RK_ASSIGN_OR_RETURN(const CodeRoom left, code_room());
    return left.CheckRevision(staged);
  };
  absl::StatusOr<functions::Deployed> done = catalog_->Deploy(spec, owner, options);
  if (absl::IsNotFound(catalog_->Find(spec.name).status())) {
    // Nobody asks why one that is not there has no image.
    absl::MutexLock lock(&mutex_);
    without_image_.erase(spec.name);
  }
  RK_ASSIGN_OR_RETURN(functions::Deployed deployed, std::move(done));
  result.record = std::move(deployed.record);
  result.unchanged = deployed.unchanged;
  if (deployed.adjusted) {
    absl::MutexLock lock(&scheduling_);
    auto present = catalog_->Find(spec.name);
    if (present.ok()) scheduler_->Adjust(AsSpecified(*present));
  }
  if (result.unchanged || deployed.adjusted) {
    const std::string& image = result.record.images.dependency_image;
    const bool has_image = !image.empty() && dependencies_.Find(image).ok();
    if (!spec.starts_from_images() || has_image) return result;
    RK_ASSIGN_OR_RETURN(result.record.images, find_images(result.record, /*replaces_one=*/false));
    functions::FunctionImages& images = result.record.images;
    const auto change = [&](functions::FunctionImages* now) {
      images.function_image = now->function_image;
      // An instance may have told meanwhile.
      if (!was_loaded) images.load_failure = now->load_failure;
      *now = images;
      return true;
    };
    RK_ASSIGN_OR_RETURN(result.record,
                        catalog_->ChangeImages(result.record.name(), result.record.revision, change));
  }
  if (absl::Status put = ScheduleIfPresent(result.record); !put.ok())
    result.warnings.push_back(std::string(put.message()));
  renewal_->LookSoon();
  return result;
}

}  // namespace rekindle::daemon
