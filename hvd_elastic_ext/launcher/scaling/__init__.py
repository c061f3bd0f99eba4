"""How many hosts the job asks for: by hand, or as ``--autoscale`` decides (:mod:`hvd_elastic_ext.autoscale`)."""
