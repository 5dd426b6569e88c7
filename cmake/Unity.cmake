# For builds with -DCMAKE_UNITY_BUILD=ON, as scripts/build.sh makes them: several files compiled as one. Files with names of
# their own that a neighbour has too stay out. One that is missing here fails such a build; scripts/build.sh builds its target
# file by file then, and says so.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24 CACHE STRING "Files that are compiled as one in a unity build")

set(REKINDLE_FILE_BY_FILE "" CACHE STRING "Targets whose files are compiled one by one all the same")

# rk_names_of_its_own(FOLDER FILE...)
function(rk_names_of_its_own folder)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/${folder}/ OUTPUT_VARIABLE files)
  set_source_files_properties(${files} DIRECTORY ${CMAKE_SOURCE_DIR}/${folder} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# The compiler spends part of its time on its own garbage, of which there is more in several files: let it wait.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=500000)
endif()

function(rk_leave_out_of_unity_builds)
  if(NOT REKINDLE_CORE_ONLY)
    rk_names_of_its_own(bench freeze_victim.cc)
    rk_names_of_its_own(cli gpu_commands.cc progress_bar.cc top_frame.cc trace_file.cc)
    rk_names_of_its_own(daemon group_restore.cc job_file.cc peer_credentials_test.cc roll_back_test.cc supervised_restart.cc)
  endif()
  rk_names_of_its_own(ckpt
    dirty_pages_test.cc job_inspection_test.cc staged_image_test.cc staging_arena_test.cc written_files.cc
    written_files_test.cc)
  rk_names_of_its_own(dedup_store image_stream_test.cc manifest.cc parent_pages_test.cc scrub_test.cc store_bitrot_test.cc store_test.cc)
  rk_names_of_its_own(functions
    function_catalog_test.cc function_logs.cc keep_alive_policy_test.cc log_reader.cc runtime_api.cc
    simulation_plot.cc simulator_test.cc)
  rk_names_of_its_own(gpu_state driver_api.cc)
  rk_names_of_its_own(group member_state_test.cc)
  rk_names_of_its_own(restore
    clone_shared_memory.cc file_rollback_plan.cc frame_cache_test.cc image_directory_test.cc
    lazy_filling.cc lazy_task_test.cc lock_check.cc lock_check_test.cc memory_filler_test.cc
    missing_pages_test.cc opened_files_check_test.cc pager_guard_test.cc pages_file.cc prefill_note.cc
    prefill_set.cc sandbox.cc slab_pool_test.cc touched_files.cc touched_files_test.cc touched_pages.cc
    touched_pages_test.cc withheld_pages_test.cc working_set.cc)
  foreach(target IN LISTS REKINDLE_FILE_BY_FILE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endforeach()
endfunction()
