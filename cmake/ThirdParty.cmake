# Third-party libraries, all from Debian. One interface target, rk_deps, carries them.
#
# Where the static archives of gRPC are known to be complete they are used: loading the shared ones
# (about a hundred) costs every start of the command 8 ms, and a static binary needs no more than the
# system's libc, which keeps the relocatable bundle small.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

find_program(REKINDLE_PROTOC protoc REQUIRED)
find_program(REKINDLE_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
find_path(REKINDLE_CLI11_DIR CLI/CLI.hpp REQUIRED)
find_path(REKINDLE_JSON_DIR nlohmann/json.hpp REQUIRED)
find_path(REKINDLE_BOOST_DIR boost/beast/http.hpp REQUIRED)

add_library(rk_deps INTERFACE)
target_link_libraries(rk_deps INTERFACE Threads::Threads)
if(TARGET rk_tsan_abseil)
  target_link_libraries(rk_deps INTERFACE rk_tsan_abseil)
endif()

# Not asked of pkg-config, which takes a second for each question about gRPC.
find_path(REKINDLE_GRPC_DIR grpcpp/version_info.h REQUIRED)
file(STRINGS ${REKINDLE_GRPC_DIR}/grpcpp/version_info.h _grpc REGEX "define GRPC_CPP_VERSION_STRING ")
string(REGEX REPLACE ".*\"([0-9.]+).*" "\\1" _grpc "${_grpc}")
set(_libdir /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})

set(_static_default OFF)
if(_grpc VERSION_LESS 1.52 AND EXISTS ${_libdir}/libgrpc++.a AND EXISTS ${_libdir}/libabsl_status.a)
  set(_static_default ON)
endif()
option(REKINDLE_STATIC_DEPS "Link gRPC and the other libraries statically" ${_static_default})

if(REKINDLE_STATIC_DEPS)
  file(GLOB _absl ${_libdir}/libabsl_*.a)
  list(FILTER _absl EXCLUDE REGEX "(test|mock|benchmark)")
  set(_archives)
  foreach(name grpc++_reflection grpc++ grpc gpr upb address_sorting protobuf cares re2
               ssl crypto z uring zstd xxhash)
    if(NOT EXISTS ${_libdir}/lib${name}.a)
      message(FATAL_ERROR "${_libdir}/lib${name}.a is missing: install its -dev package (scripts/setup.sh does) "
                          "or configure with -DREKINDLE_STATIC_DEPS=OFF")
    endif()
    list(APPEND _archives ${_libdir}/lib${name}.a)
  endforeach()
  target_link_libraries(rk_deps INTERFACE
    -Wl,--start-group ${_archives} ${_absl} -Wl,--end-group ${CMAKE_DL_LIBS})
  if(REKINDLE_SANITIZER STREQUAL "")
    target_link_options(rk_deps INTERFACE -static-libstdc++ -static-libgcc -no-pie)
  endif()
else()
  pkg_check_modules(SHARED_DEPS REQUIRED IMPORTED_TARGET
    grpc++ grpc++_reflection protobuf openssl liburing libzstd libxxhash
    absl_status absl_statusor absl_strings absl_str_format absl_synchronization absl_flat_hash_map absl_cord
    absl_failure_signal_handler absl_symbolize)
  target_link_libraries(rk_deps INTERFACE PkgConfig::SHARED_DEPS ${CMAKE_DL_LIBS})
endif()
